"""Model-based RL: train an ensemble of small dynamics networks on replayed transitions."""

import argparse, json, time
import torch
from torch import nn


class Member(nn.Module):
    def __init__(self, i, o, h):
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(i, h), nn.Linear(h, h), nn.Linear(h, o)

    def forward(self, x):
        return self.l3(torch.nn.functional.silu(self.l2(torch.nn.functional.silu(self.l1(x)))))


class LoopEnsemble(nn.Module):
    def __init__(self, n, i, o, h):
        super().__init__()
        self.members = nn.ModuleList(Member(i, o, h) for _ in range(n))

    def forward(self, x):  # x: members, batch, i
        return torch.stack([m(xi) for m, xi in zip(self.members, x)])


class BatchedEnsemble(nn.Module):
    def __init__(self, n, i, o, h):
        super().__init__()
        dims = [(i, h), (h, h), (h, o)]
        self.w = nn.ParameterList(nn.Parameter(torch.randn(n, a, b) * a**-0.5) for a, b in dims)
        self.b = nn.ParameterList(nn.Parameter(torch.zeros(n, 1, b)) for _, b in dims)

    def forward(self, x):
        for k, (w, b) in enumerate(zip(self.w, self.b)):
            x = torch.baddbmm(b, x, w)
            if k < 2:
                x = nn.functional.silu(x)
        return x


class Replay:
    def __init__(self, cap, s, a):
        self.x, self.y = torch.randn(cap, s + a), torch.randn(cap, s + 1)

    def sample(self, n, b):
        i = torch.randint(0, len(self.x), (n, b))
        return self.x[i], self.y[i]


def train(cfg):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    cls = BatchedEnsemble if cfg.better else LoopEnsemble
    model = cls(cfg.members, 14, 11, cfg.hidden)
    opt = torch.optim.SGD(model.parameters(), lr=1e-2, foreach=True)
    replay = Replay(50000, 10, 4)
    out, t0 = [], time.perf_counter()
    start = t0
    while True:
        x, y = replay.sample(cfg.members, 16)
        per_member = (model(x) - y).pow(2).mean(dim=(1, 2))
        opt.zero_grad()
        per_member.sum().backward()
        opt.step()
        t1 = time.perf_counter()
        out.append(t1 - t0)
        t0 = t1
        if len(out) % 100 == 0:
            print(f"step {len(out)} best member {per_member.argmin().item()} mse {per_member.min().item():.4f}")
        if t1 - start > cfg.seconds and len(out) >= 24:
            return out


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--members", type=int, default=48)
    ap.add_argument("--hidden", type=int, default=64)
    cfg = ap.parse_args()
    d = train(cfg)
    if cfg.times:
        with open(cfg.times, "w") as f:
            json.dump(d, f)
