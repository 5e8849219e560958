"""Pick arm, off-policy training (TD3-like, one critic) with experience kept in memory."""

import argparse, json, time, copy
import torch
from torch import nn

OBS, ACT, CAP, BATCH = 46, 7, 90_000, 256


class CatReplay:
    def __init__(self, cap):
        self.cap = cap
        self.data = torch.randn(cap, 2 * OBS + ACT + 2)

    def add(self, rows):
        self.data = torch.cat([self.data, rows])[-self.cap :]

    def sample(self, n):
        return self.data[torch.randint(0, len(self.data), (n,))]


class RingReplay(CatReplay):
    pos = 0

    def add(self, rows):
        idx = torch.arange(self.pos, self.pos + len(rows)) % self.cap
        self.data[idx] = rows
        self.pos = (self.pos + len(rows)) % self.cap


def mlp(i, o, h=384):
    return nn.Sequential(nn.Linear(i, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, o))


class Arm:
    def __init__(self, n=8):
        g = torch.Generator().manual_seed(4)
        self.W = torch.randn(OBS + ACT, OBS, generator=g) * 0.12
        self.s = torch.randn(n, OBS)

    def step(self, a):
        s2 = torch.tanh(torch.cat([self.s, a], 1) @ self.W)
        r = -s2[:, :3].norm(dim=1, keepdim=True)
        done = (torch.rand(len(a), 1) < 0.01).float()
        row = torch.cat([self.s, a, r, done, s2], 1)
        self.s = torch.where(done > 0, torch.randn_like(s2), s2)
        return row


class Learner:
    def __init__(self):
        self.pi, self.q = mlp(OBS, ACT), mlp(OBS + ACT, 1)
        self.pi_t, self.q_t = copy.deepcopy(self.pi), copy.deepcopy(self.q)
        self.opt_pi = torch.optim.Adam(self.pi.parameters(), lr=3e-4, fused=True)
        self.opt_q = torch.optim.Adam(self.q.parameters(), lr=3e-4, fused=True)
        self.online = list(self.pi.parameters()) + list(self.q.parameters())
        self.target = list(self.pi_t.parameters()) + list(self.q_t.parameters())

    @torch.no_grad()
    def act(self, s):
        return (torch.tanh(self.pi(s)) + 0.1 * torch.randn(len(s), ACT)).clamp(-1, 1)

    def learn(self, rows):
        s, a, r, d, s2 = rows.split([OBS, ACT, 1, 1, OBS], dim=1)
        with torch.no_grad():
            y = r + 0.99 * (1 - d) * self.q_t(torch.cat([s2, torch.tanh(self.pi_t(s2))], 1))
        lq = (self.q(torch.cat([s, a], 1)) - y).square().mean()
        self.opt_q.zero_grad(set_to_none=True)
        lq.backward()
        self.opt_q.step()
        self.q.requires_grad_(False)
        lp = -self.q(torch.cat([s, torch.tanh(self.pi(s))], 1)).mean()
        self.opt_pi.zero_grad(set_to_none=True)
        lp.backward()
        self.opt_pi.step()
        self.q.requires_grad_(True)
        with torch.no_grad():
            torch._foreach_lerp_(self.target, self.online, 0.005)
        return lq


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    replay = (RingReplay if args.better else CatReplay)(CAP)
    arm, learner = Arm(), Learner()
    times = []
    t0 = time.perf_counter()
    while True:
        t = time.perf_counter()
        replay.add(arm.step(learner.act(arm.s)))
        lq = learner.learn(replay.sample(BATCH))
        e = time.perf_counter()
        times.append(e - t)
        if len(times) % 50 == 0:
            print("step", len(times), "q", round(lq.item(), 4))
        if e - t0 > args.seconds:
            break
    if args.times:
        json.dump(times, open(args.times, "w"))
