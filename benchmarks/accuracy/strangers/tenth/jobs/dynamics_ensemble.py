"""Probabilistic ensemble of one-step dynamics models (PETS style) for a planar arm."""

import argparse, json, time
import torch
from torch import nn

STATE, ACTION, MEMBERS, HIDDEN = 8, 3, 12, 160


def transitions(n):
    s = torch.randn(n, STATE)
    a = torch.rand(n, ACTION) * 2 - 1
    m = torch.randn(STATE + ACTION, STATE, generator=torch.Generator().manual_seed(5)) * 0.3
    return torch.cat([s, a], 1), torch.tanh(torch.cat([s, a], 1) @ m) + 0.05 * torch.randn(n, STATE)


class Member(nn.Module):
    def __init__(self):
        super().__init__()
        d = [STATE + ACTION, HIDDEN, HIDDEN, HIDDEN, 2 * STATE]
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in zip(d, d[1:]))
        self.max_logvar = nn.Parameter(torch.full((STATE,), 0.5))
        self.min_logvar = nn.Parameter(torch.full((STATE,), -10.0))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = nn.functional.silu(layer(x))
        mean, logvar = self.layers[-1](x).chunk(2, -1)
        logvar = self.max_logvar - nn.functional.softplus(self.max_logvar - logvar)
        logvar = self.min_logvar + nn.functional.softplus(logvar - self.min_logvar)
        return mean, logvar


class MemberList(nn.Module):
    def __init__(self):
        super().__init__()
        self.members = nn.ModuleList(Member() for _ in range(MEMBERS))

    def forward(self, x):  # x: members, batch, features
        outs = [member(xi) for member, xi in zip(self.members, x)]
        return torch.stack([o[0] for o in outs]), torch.stack([o[1] for o in outs])


class BatchedMembers(nn.Module):
    def __init__(self):
        super().__init__()
        d = [STATE + ACTION, HIDDEN, HIDDEN, HIDDEN, 2 * STATE]
        self.w = nn.ParameterList()
        self.b = nn.ParameterList()
        for i, o in zip(d, d[1:]):
            self.w.append(nn.Parameter((torch.rand(MEMBERS, i, o) * 2 - 1) / i**0.5))
            self.b.append(nn.Parameter((torch.rand(MEMBERS, 1, o) * 2 - 1) / i**0.5))
        self.max_logvar = nn.Parameter(torch.full((MEMBERS, 1, STATE), 0.5))
        self.min_logvar = nn.Parameter(torch.full((MEMBERS, 1, STATE), -10.0))

    def forward(self, x):
        for k in range(len(self.w) - 1):
            x = nn.functional.silu(torch.baddbmm(self.b[k], x, self.w[k]))
        mean, logvar = torch.baddbmm(self.b[-1], x, self.w[-1]).chunk(2, -1)
        logvar = self.max_logvar - nn.functional.softplus(self.max_logvar - logvar)
        logvar = self.min_logvar + nn.functional.softplus(logvar - self.min_logvar)
        return mean, logvar


def gaussian_nll(mean, logvar, y):
    return ((mean - y) ** 2 * torch.exp(-logvar) + logvar).mean((1, 2)).sum()


def train(model, seconds, batch=96):
    x, y = transitions(20000)
    opt = torch.optim.Adam(model.parameters(), 1e-3, weight_decay=1e-5)
    times, t0 = [], time.perf_counter()
    last = t0
    for it in range(100000):
        idx = torch.randint(len(x), (MEMBERS, batch))
        mean, logvar = model(x[idx])
        loss = gaussian_nll(mean, logvar, y[idx])
        loss = loss + 0.01 * sum(p.sum() for n, p in model.named_parameters() if n.endswith("max_logvar"))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if it % 100 == 0:
            print("iter", it, "nll", round(loss.item() / MEMBERS, 4))
        t = time.perf_counter()
        times.append(t - last)
        last = t
        if t - t0 > seconds:
            return times


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    p.add_argument("--seconds", type=float, default=12)
    a = p.parse_args()
    torch.manual_seed(0)
    times = train(BatchedMembers() if a.better else MemberList(), a.seconds)
    if a.times:
        json.dump(times, open(a.times, "w"))
