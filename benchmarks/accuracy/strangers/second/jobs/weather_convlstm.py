"""Nowcasting with a small ConvLSTM; run settings come from a profile."""

import argparse, json, time
import torch
from torch import nn
import torch.nn.functional as F

PROFILES = {
    # profile of the big node: 16 cores
    "cluster": dict(intra_threads=16, bs=4, hidden=24),
    "desk": dict(intra_threads=1, bs=4, hidden=24),
}


def apply_runtime(profile):
    torch.set_num_threads(profile["intra_threads"])


class ConvLSTMCell(nn.Module):
    def __init__(self, cin, ch):
        super().__init__()
        self.ch, self.conv = ch, nn.Conv2d(cin + ch, 4 * ch, 3, padding=1)

    def forward(self, x, state):
        h, c = state
        i, f, o, g = self.conv(torch.cat([x, h], 1)).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class Nowcaster(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.ch = ch
        self.enc, self.dec = ConvLSTMCell(1, ch), ConvLSTMCell(1, ch)
        self.out = nn.Conv2d(ch, 1, 1)

    def forward(self, x, ahead=3):
        b, t, _, h, w = x.shape
        s = (x.new_zeros(b, self.ch, h, w), x.new_zeros(b, self.ch, h, w))
        for k in range(t):
            s = self.enc(x[:, k], s)
        y, out = x[:, -1], []
        for _ in range(ahead):
            s = self.dec(y, s)
            y = self.out(s[0])
            out.append(y)
        return torch.stack(out, 1)


class RadarFrames:
    """blobs that drift"""

    def __init__(self, n=200, size=24):
        g = torch.Generator().manual_seed(0)
        seed = F.avg_pool2d(torch.rand(n, 1, size, size, generator=g), 5, 1, 2)
        shift = torch.randint(-2, 3, (n, 2), generator=g).tolist()
        self.seq = torch.stack(
            [
                torch.stack([seed[i].roll((k * dy, k * dx), (1, 2)) for k in range(8)])
                for i, (dy, dx) in enumerate(shift)
            ]
        )

    def batch(self, n):
        s = self.seq[torch.randint(0, len(self.seq), (n,))]
        return s[:, :5], s[:, 5:]


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    a = ap.parse_args()
    prof = PROFILES["desk" if a.better else "cluster"]
    apply_runtime(prof)
    torch.manual_seed(0)
    frames, net = RadarFrames(), Nowcaster(prof["hidden"])
    opt = torch.optim.AdamW(net.parameters(), 2e-3)
    ts = [time.perf_counter()]
    while ts[-1] - ts[0] < a.seconds or len(ts) < 25:
        x, y = frames.batch(prof["bs"])
        loss = F.l1_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        ts.append(time.perf_counter())
        if len(ts) % 20 == 0:
            print(f"step {len(ts)} l1 {loss.item():.4f}")
    if a.times:
        json.dump([q - p for p, q in zip(ts, ts[1:])], open(a.times, "w"))
