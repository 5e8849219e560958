"""State of health of lithium cells from charge curves (voltage, current, temperature)."""

import argparse, json, time
import torch
import torch.nn as nn

STEPS = 80
CH = 3
HID = 64
BATCH = 48


def charge_curves(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    soh = 0.7 + 0.3 * torch.rand(n, 1, generator=g)
    t = torch.linspace(0, 1, STEPS)[None]
    volt = 3.0 + 1.2 * (1 - torch.exp(-3 * t / soh))
    amp = torch.where(volt > 4.0, torch.exp(-4 * (t - 0.6) / soh).clamp(max=1.0), torch.ones_like(volt))
    temp = 25 + 6 * (1 - soh) * t + 2 * t
    x = torch.stack([(volt - 3.7) / 0.4, amp - 0.7, (temp - 27) / 2], -1)
    return x + 0.02 * torch.randn(x.shape, generator=g), soh.squeeze(1)


class StepwiseEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell0 = nn.LSTMCell(CH, HID)
        self.cell1 = nn.LSTMCell(HID, HID)

    def forward(self, x):
        b = x.size(0)
        h0 = c0 = h1 = c1 = x.new_zeros(b, HID)
        hist = []
        for k in range(x.size(1)):
            h0, c0 = self.cell0(x[:, k], (h0, c0))
            h1, c1 = self.cell1(h0, (h1, c1))
            hist.append(h1)
        return torch.stack(hist, 1)


class LayerEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(CH, HID, num_layers=2, batch_first=True)

    def forward(self, x):
        return self.rnn(x)[0]


class SOHNet(nn.Module):
    def __init__(self, enc):
        super().__init__()
        self.enc = enc
        self.score = nn.Linear(HID, 1)
        self.out = nn.Linear(HID, 1)

    def forward(self, x):
        h = self.enc(x)
        w = self.score(h).softmax(1)
        return self.out((w * h).sum(1)).squeeze(-1) + 0.85


def run(args):
    torch.manual_seed(0)
    x, y = charge_curves(2000)
    xv, yv = charge_curves(200, seed=1)
    net = SOHNet(LayerEncoder() if args.better else StepwiseEncoder())
    opt = torch.optim.Adam(net.parameters(), lr=2e-3, fused=True)
    walls = []
    t0 = time.perf_counter()
    i = 0
    while time.perf_counter() - t0 < args.seconds:
        t = time.perf_counter()
        j = torch.randint(0, len(x), (BATCH,))
        loss = nn.functional.mse_loss(net(x[j]), y[j])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        i += 1
        walls.append(time.perf_counter() - t)
        if not i % 25:
            print("step", i, "rmse", round(loss.item() ** 0.5, 4))
    net.eval()
    with torch.inference_mode():
        print("validation rmse", (net(xv) - yv).square().mean().sqrt().item())
    return walls


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    ns = parser.parse_args()
    w = run(ns)
    if ns.times:
        json.dump(w, open(ns.times, "w"))
