"""PPO-like actor-critic: short roll-outs in a vectorised world, several update epochs."""

import argparse
import copy
import time
from collections import deque

import torch
from torch import nn
from torch.distributions import Normal


class ReachWorld:
    """N arms move to a target; everything is batched over N."""

    def __init__(self, n, joints=6):
        self.n, self.joints = n, joints
        self.angle = torch.zeros(n, joints)
        self.goal = torch.rand(n, 2) * 2 - 1

    def obs(self):
        return torch.cat([self.angle, torch.sin(self.angle), self.goal, self.tip()], 1)

    def tip(self):
        total = self.angle.cumsum(1)
        return torch.stack([total.cos().mean(1), total.sin().mean(1)], 1)

    def step(self, torque):
        self.angle = (self.angle + 0.1 * torque.clamp(-1, 1)).clamp(-3.14, 3.14)
        dist = (self.tip() - self.goal).norm(dim=1)
        done = dist < 0.05
        for i in done.nonzero().flatten().tolist():  # only the few that arrived
            self.goal[i] = torch.rand(2) * 2 - 1
        return -dist + done.float() * 5, done


class Policy(nn.Module):
    def __init__(self, n_obs=16, joints=6, width=384):
        super().__init__()
        self.pi = nn.Sequential(
            nn.Linear(n_obs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, joints)
        )
        self.v = nn.Sequential(
            nn.Linear(n_obs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )
        self.log_std = nn.Parameter(torch.full((joints,), -0.5))

    def dist(self, o):
        return Normal(self.pi(o), self.log_std.exp())


@torch.no_grad()
def collect(world, policy, length):
    rows = []
    for _ in range(length):
        o = world.obs()
        d = policy.dist(o)
        act = d.sample()
        r, done = world.step(act)
        rows.append((o, act, d.log_prob(act).sum(1), policy.v(o).squeeze(1), r, done.float()))
    return [torch.stack(c) for c in zip(*rows)]


def gae(values, rewards, dones, gamma=0.97, lam=0.9):
    adv, acc = [], torch.zeros(values.size(1))
    for t in range(len(values) - 2, -1, -1):
        delta = rewards[t] + gamma * values[t + 1] * (1 - dones[t]) - values[t]
        acc = delta + gamma * lam * (1 - dones[t]) * acc
        adv.insert(0, acc)
    return torch.stack(adv)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    a = ap.parse_args()
    torch.manual_seed(3)
    world, policy = ReachWorld(128), Policy()
    opt = torch.optim.Adam(policy.parameters(), lr=3e-4)
    best, snapshot, rewards_seen = -1e9, None, deque(maxlen=20)
    spent, it = [], 0
    end = time.perf_counter() + a.seconds
    while time.perf_counter() < end:
        t0 = time.perf_counter()
        o, act, logp, val, rew, done = collect(world, policy, 9)
        adv = gae(val, rew, done)
        ret = (adv + val[:-1]).flatten()
        o, act, logp = o[:-1].flatten(0, 1), act[:-1].flatten(0, 1), logp[:-1].flatten()
        adv = ((adv - adv.mean()) / (adv.std() + 1e-8)).flatten()
        for _ in range(3):
            for pick in torch.randperm(len(o)).chunk(2):
                d = policy.dist(o[pick])
                ratio = (d.log_prob(act[pick]).sum(1) - logp[pick]).exp()
                gain = torch.min(ratio * adv[pick], ratio.clamp(0.8, 1.2) * adv[pick]).mean()
                v_loss = (policy.v(o[pick]).squeeze(1) - ret[pick]).pow(2).mean()
                loss = -gain + 0.5 * v_loss - 0.001 * d.entropy().sum(1).mean()
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
                opt.step()
        rewards_seen.append(rew.mean().item())
        mean = sum(rewards_seen) / len(rewards_seen)
        if it % 25 == 0:
            print(f"iteration {it} reward {mean:.4f} loss {loss.item():.4f}", flush=True)
            if mean > best:
                best, snapshot = mean, copy.deepcopy(policy.state_dict())
        it += 1
        spent.append(time.perf_counter() - t0)
    print("best mean reward", best, "tensors kept:", len(snapshot or {}))
    if a.times:
        with open(a.times, "w") as f:
            f.write("\n".join(str(s) for s in spent) + "\n")


if __name__ == "__main__":
    main()
