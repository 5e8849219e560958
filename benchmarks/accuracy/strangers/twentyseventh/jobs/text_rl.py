"""Text-game PPO: rank 0 learns, the other ranks play. Rollouts go up, weights come down."""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

CURED = os.environ.get("CURED") == "1"
STEPS = int(os.environ.get("STEPS", 120))
WORDS, WDIM, HID, ACTIONS = 90000, 256, 160, 12
ENVS, HORIZON, OBS_LEN, EPOCHS = 20, 10, 12, 2


class Policy(nn.Module):
    """Fixed pretrained word vectors, a GRU reader and two small heads."""

    def __init__(self):
        super().__init__()
        g = torch.Generator().manual_seed(123)
        self.words = nn.Embedding.from_pretrained(torch.randn(WORDS, WDIM, generator=g) * 0.3, freeze=True)
        self.reader = nn.GRU(WDIM, HID, batch_first=True)
        self.body = nn.Sequential(nn.Linear(HID, HID), nn.ReLU())
        self.pi, self.v = nn.Linear(HID, ACTIONS), nn.Linear(HID, 1)

    def forward(self, obs):
        _, h = self.reader(self.words(obs))
        h = self.body(h[-1])
        return self.pi(h), self.v(h).squeeze(-1)


class Games:
    """A batch of tiny text worlds: a room graph with a hidden goal in each."""

    def __init__(self, n, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.n = n
        self.rooms = torch.randint(0, WORDS, (64, OBS_LEN), generator=self.g)
        self.doors = torch.randint(0, 64, (64, ACTIONS), generator=self.g)
        self.at = torch.randint(0, 64, (n,), generator=self.g)
        self.goal = torch.randint(0, 64, (n,), generator=self.g)

    def look(self):
        return self.rooms[self.at]

    def act(self, a):
        self.at = self.doors[self.at, a]
        done = self.at == self.goal
        fresh = torch.randint(0, 64, (self.n,), generator=self.g)
        self.at = torch.where(done, fresh, self.at)
        return done.float(), done


def rollout_buffers(n):
    return {
        "obs": torch.zeros(HORIZON, n, OBS_LEN, dtype=torch.long),
        "act": torch.zeros(HORIZON, n, dtype=torch.long),
        "logp": torch.zeros(HORIZON, n),
        "rew": torch.zeros(HORIZON, n),
        "done": torch.zeros(HORIZON, n),
        "val": torch.zeros(HORIZON + 1, n),
    }


class WeightChannel:
    def __init__(self, policy):
        self.policy = policy
        if CURED:
            self.payload = [p.data for p in policy.parameters() if p.requires_grad]
        else:
            self.payload = list(policy.state_dict().values())

    def publish(self):
        flat = torch.cat([t.reshape(-1) for t in self.payload])
        dist.broadcast(flat, src=0)
        if dist.get_rank() != 0:
            for t, new in zip(self.payload, flat.split([t.numel() for t in self.payload])):
                t.copy_(new.view_as(t))


class Actor:
    def __init__(self, rank):
        self.policy, self.env = Policy(), Games(ENVS, rank)
        self.channel = WeightChannel(self.policy)

    @torch.no_grad()
    def iterate(self):
        self.channel.publish()
        buf = rollout_buffers(ENVS)
        for t in range(HORIZON):
            obs = self.env.look()
            logits, value = self.policy(obs)
            d = torch.distributions.Categorical(logits=logits)
            a = d.sample()
            buf["obs"][t], buf["act"][t], buf["logp"][t], buf["val"][t] = obs, a, d.log_prob(a), value
            buf["rew"][t], done = self.env.act(a)
            buf["done"][t] = done
        buf["val"][HORIZON] = self.policy(self.env.look())[1]
        for v in buf.values():
            dist.send(v, dst=0)


class Learner:
    def __init__(self, world):
        torch.manual_seed(0)
        self.world = world
        self.policy = Policy()
        self.channel = WeightChannel(self.policy)
        self.opt = torch.optim.RMSprop([p for p in self.policy.parameters() if p.requires_grad], lr=3e-4, foreach=False)

    def collect(self):
        parts = []
        for src in range(1, self.world):
            buf = rollout_buffers(ENVS)
            for v in buf.values():
                dist.recv(v, src=src)
            parts.append(buf)
        return {k: torch.cat([p[k] for p in parts], 1) for k in parts[0]}

    def advantages(self, b):
        adv, last = torch.zeros_like(b["rew"]), 0.0
        for t in reversed(range(HORIZON)):
            live = 1 - b["done"][t]
            delta = b["rew"][t] + 0.99 * b["val"][t + 1] * live - b["val"][t]
            last = delta + 0.99 * 0.95 * live * last
            adv[t] = last
        return adv

    def iterate(self):
        self.channel.publish()
        b = self.collect()
        adv = self.advantages(b)
        ret = (adv + b["val"][:-1]).flatten()
        adv = ((adv - adv.mean()) / (adv.std() + 1e-6)).flatten()
        obs, act, logp = b["obs"].flatten(0, 1), b["act"].flatten(), b["logp"].flatten()
        for _ in range(EPOCHS):
            for idx in torch.randperm(len(act)).chunk(2):
                logits, v = self.policy(obs[idx])
                d = torch.distributions.Categorical(logits=logits)
                ratio = (d.log_prob(act[idx]) - logp[idx]).exp()
                pg = -torch.min(ratio * adv[idx], ratio.clamp(0.8, 1.2) * adv[idx]).mean()
                loss = pg + 0.5 * F.mse_loss(v, ret[idx]) - 0.01 * d.entropy().mean()
                self.opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.policy.parameters(), 0.5)
                self.opt.step()
        return b["rew"].sum().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--times")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(rank)
    worker = Learner(dist.get_world_size()) if rank == 0 else Actor(rank)
    times = []
    for it in range(STEPS):
        t0 = time.perf_counter()
        score = worker.iterate()
        times.append(time.perf_counter() - t0)
        if rank == 0 and it % 30 == 0:
            print(f"iteration {it} reward {score}", flush=True)
    if args.times and rank == 0:
        json.dump(times, open(args.times, "w"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
