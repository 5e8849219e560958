"""Offline Q-learning from a logged arcade data set, one learner per rank."""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

ARGS = dict(frames=4000, raw=84, side=48, stack=4, actions=6, batch=128, gamma=0.99, lr=2.5e-4, pad=4, target_every=50)
SPREAD = os.environ.get("CURED") == "1"


class ReplayLog:
    """All logged frames as uint8; a sample is two stacks of frames with a random shift."""

    def __init__(self, cfg):
        g = torch.Generator().manual_seed(77)
        n, s = cfg["frames"], cfg["raw"]
        self.cfg = cfg
        self.frames = torch.randint(0, 256, (n, s, s), dtype=torch.uint8, generator=g)
        self.action = torch.randint(0, cfg["actions"], (n,), generator=g)
        self.reward = torch.randn(n, generator=g)
        self.done = (torch.rand(n, generator=g) < 0.01).float()

    def view(self, i, dy, dx):
        k, p = self.cfg["stack"], self.cfg["pad"]
        clip = self.frames[None, i - k + 1 : i + 1].float() / 255.0
        clip = F.interpolate(clip, size=self.cfg["side"], mode="bilinear", antialias=True)[0]
        clip = (clip - clip.mean((1, 2), keepdim=True)) / (clip.std((1, 2), keepdim=True) + 1e-3)
        clip = F.pad(clip[None], (p, p, p, p), mode="replicate")[0]
        s = self.cfg["side"]
        return clip[:, dy : dy + s, dx : dx + s]

    def collect(self, picks):
        now = torch.stack([self.view(i, dy, dx) for i, dy, dx in picks.tolist()])
        nxt = torch.stack([self.view(i + 1, dy, dx) for i, dy, dx in picks.tolist()])
        i = picks[:, 0]
        side = torch.stack([self.action[i].float(), self.reward[i], self.done[i]], 1)
        return now, nxt, side


class Sampler:
    def __init__(self, cfg, log):
        self.cfg, self.log = cfg, log
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.g = torch.Generator().manual_seed(31)

    def picks(self):
        c = self.cfg
        n = c["batch"] * self.world
        idx = torch.randint(c["stack"], c["frames"] - 1, (n, 1), generator=self.g)
        shift = torch.randint(0, 2 * c["pad"] + 1, (n, 2), generator=self.g)
        return torch.cat([idx, shift], 1)

    def next(self):
        c, b = self.cfg, self.cfg["batch"]
        if SPREAD:
            p = self.picks() if self.rank == 0 else torch.empty(b * self.world, 3, dtype=torch.long)
            dist.broadcast(p, 0)
            return self.log.collect(p[self.rank * b : (self.rank + 1) * b])
        clip = (b, c["stack"], c["side"], c["side"])
        mine = [torch.empty(clip), torch.empty(clip), torch.empty(b, 3)]
        parts = [None] * 3
        if self.rank == 0:
            parts = [list(x.chunk(self.world)) for x in self.log.collect(self.picks())]
        for dst, src in zip(mine, parts):
            dist.scatter(dst, src, src=0)
        return mine


def q_network(cfg):
    return nn.Sequential(
        nn.Conv2d(cfg["stack"], 32, 8, 4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 4, 256),
        nn.ReLU(),
        nn.Linear(256, cfg["actions"]),
    )


class Learner:
    def __init__(self, cfg):
        self.cfg = cfg
        torch.manual_seed(8)
        self.q, self.target = q_network(cfg), q_network(cfg)
        self.target.load_state_dict(self.q.state_dict())
        self.opt = torch.optim.Adam(self.q.parameters(), lr=cfg["lr"], fused=True)
        self.count = 0

    def update(self, now, nxt, side):
        action, reward, done = side[:, 0].long(), side[:, 1], side[:, 2]
        with torch.no_grad():
            best = self.q(nxt).argmax(1, keepdim=True)
            goal = reward + self.cfg["gamma"] * (1 - done) * self.target(nxt).gather(1, best).squeeze(1)
        loss = F.smooth_l1_loss(self.q(now).gather(1, action[:, None]).squeeze(1), goal)
        self.opt.zero_grad()
        loss.backward()
        flat = nn.utils.parameters_to_vector([p.grad for p in self.q.parameters()])
        dist.all_reduce(flat)
        nn.utils.vector_to_parameters(flat / dist.get_world_size(), [p.grad for p in self.q.parameters()])
        self.opt.step()
        self.count += 1
        if self.count % self.cfg["target_every"] == 0:
            self.target.load_state_dict(self.q.state_dict())
        return loss


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--times")
    cli = ap.parse_args()
    dist.init_process_group("gloo")
    sampler, learner, spent = Sampler(ARGS, ReplayLog(ARGS)), Learner(ARGS), []
    for it in range(int(os.environ.get("STEPS", 150))):
        t0 = time.perf_counter()
        loss = learner.update(*sampler.next())
        spent.append(time.perf_counter() - t0)
        if it % 50 == 0 and dist.get_rank() == 0:
            print(f"update {it}: td {loss.item():.4f}", flush=True)
    if cli.times and dist.get_rank() == 0:
        with open(cli.times, "w") as f:
            print(*(f"{s:.6f}" for s in spent), sep="\n", file=f)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
