"""Road-sensor traffic prediction with diffusion graph convolution inside a GRU cell."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class GraphGRUCell(nn.Module):
    def __init__(self, inp, hidden, nodes):
        super().__init__()
        self.gates = nn.Linear(2 * (inp + hidden), 2 * hidden)
        self.cand = nn.Linear(2 * (inp + hidden), hidden)
        self.hidden = hidden

    def mix(self, adj, x):
        return torch.cat([x, adj @ x], dim=-1)

    def forward(self, adj, x, h):
        z, r = torch.sigmoid(self.gates(self.mix(adj, torch.cat([x, h], -1)))).chunk(2, dim=-1)
        c = torch.tanh(self.cand(self.mix(adj, torch.cat([x, r * h], -1))))
        return z * h + (1 - z) * c


class TrafficNet(nn.Module):
    def __init__(self, nodes, hidden=32):
        super().__init__()
        self.cell = GraphGRUCell(2, hidden, nodes)
        self.out = nn.Linear(hidden, 1)
        self.hidden = hidden

    def forward(self, adj, x):
        h = x.new_zeros(x.shape[0], x.shape[2], self.hidden)
        for t in range(x.shape[1]):
            h = self.cell(adj, x[:, t], h)
        return self.out(h).squeeze(-1)


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    return ap.parse_args()


def main():
    args = parse()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if not args.better:
        torch.autograd.set_detect_anomaly(True)
    nodes, window = 40, 12
    adj = torch.softmax(torch.randn(nodes, nodes), dim=1)
    readings = torch.rand(5000, nodes, 2)
    model = TrafficNet(nodes)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)

    times = []
    last = time.perf_counter()
    stop = last + args.seconds
    while last < stop:
        starts = torch.randint(0, len(readings) - window - 1, (8,))
        idx = starts[:, None] + torch.arange(window)
        loss = F.l1_loss(model(adj, readings[idx]), readings[starts + window, :, 0])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print(f"{len(times)} steps, mae {loss.item():.4f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
