"""Speed forecasting on a road-sensor network with graph and temporal convolutions."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def road_network(n, seed):
    """Sensors along roads: each is linked to its nearest few neighbours; row-normalised with self loops."""
    rng = np.random.default_rng(seed)
    xy = rng.random((n, 2))
    gap = ((xy[:, None] - xy[None]) ** 2).sum(-1)
    near = np.argsort(gap, axis=1)[:, :6]
    rows = np.repeat(np.arange(n), 6)
    cols = near.reshape(-1)
    weight = np.exp(-gap[rows, cols] * n)
    adj = np.zeros((n, n), dtype=np.float32)
    adj[rows, cols] = weight
    adj = np.maximum(adj, adj.T)
    adj /= adj.sum(1, keepdims=True)
    return torch.from_numpy(adj)


def simulate_speeds(adj, steps, seed):
    rng = np.random.default_rng(seed)
    mix = adj.numpy()
    x = np.zeros((steps, len(mix)), dtype=np.float32)
    daily = np.sin(np.arange(steps) / 288 * 2 * np.pi).astype(np.float32)
    for t in range(1, steps):
        x[t] = 0.6 * x[t - 1] + 0.3 * (mix @ x[t - 1]) + 0.2 * daily[t] + 0.2 * rng.standard_normal(len(mix))
    return torch.from_numpy(x)


class Windows(Dataset):
    def __init__(self, speeds, past, ahead):
        self.speeds, self.past, self.ahead = speeds, past, ahead

    def __len__(self):
        return len(self.speeds) - self.past - self.ahead

    def __getitem__(self, i):
        cut = i + self.past
        return self.speeds[i:cut].t(), self.speeds[cut : cut + self.ahead].t()


class GraphConv(nn.Module):
    def __init__(self, adj, cin, cout):
        super().__init__()
        self.register_buffer("adj", adj, persistent=False)
        self.own = nn.Linear(cin, cout)
        self.neigh = nn.Linear(cin, cout, bias=False)

    def forward(self, x):
        n, b, c = x.shape
        spread = (self.adj @ x.reshape(n, b * c)).view(n, b, c)
        return self.own(x) + self.neigh(spread)


class SpeedNet(nn.Module):
    def __init__(self, adj, past, ahead, width):
        super().__init__()
        self.embed = nn.Linear(past, width)
        self.convs = nn.ModuleList(GraphConv(adj, width, width) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.head = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, ahead))

    def forward(self, x):
        h = F.relu(self.embed(x.transpose(0, 1).contiguous()))
        for conv, norm in zip(self.convs, self.norms):
            h = h + F.relu(conv(norm(h)))
        return self.head(h).transpose(0, 1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--sensors", type=int, default=900)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    opt = ap.parse_args()
    torch.manual_seed(0)

    adj = road_network(opt.sensors, seed=4)
    speeds = simulate_speeds(adj, 1200, seed=5)
    if opt.better:
        adj = adj.to_sparse_csr()
    loader = DataLoader(Windows(speeds, 12, 6), batch_size=opt.batch, shuffle=True, drop_last=True)
    model = SpeedNet(adj, 12, 6, width=48)
    optim = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    times, count = [], 0
    begin = last = time.perf_counter()
    while last - begin < opt.seconds:
        for past, future in loader:
            loss = F.l1_loss(model(past), future)
            optim.zero_grad(set_to_none=True)
            loss.backward()
            optim.step()
            count += 1
            if count % 50 == 0:
                print(f"step {count} mae {loss.item():.4f}")
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if last - begin >= opt.seconds:
                break
    if opt.times:
        with open(opt.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
