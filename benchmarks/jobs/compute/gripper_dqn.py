"""Double DQN for the bin-picking gripper (discrete grasp poses, 16 simulated cells)."""

import argparse
import copy
import json
import time

import torch
from torch import nn

OBS, ACTIONS, CELLS = 128, 24, 16
CAPACITY = 100_000


class Cells:
    """Sixteen simulated picking cells, stepped together."""

    def __init__(self):
        self.g = torch.Generator().manual_seed(5)
        self.obs = torch.randn(CELLS, OBS, generator=self.g)
        self.target = torch.randn(ACTIONS, OBS, generator=self.g)

    def step(self, action):
        reward = torch.tanh((self.obs * self.target[action]).mean(1) * 8)
        self.obs = 0.9 * self.obs + 0.3 * torch.randn(CELLS, OBS, generator=self.g)
        done = (torch.rand(CELLS, generator=self.g) < 0.02).float()
        return self.obs, reward, done


class Memory:
    """The last CAPACITY transitions."""

    def __init__(self):
        self.data = {
            "obs": torch.zeros(CAPACITY, OBS),
            "next_obs": torch.zeros(CAPACITY, OBS),
            "action": torch.zeros(CAPACITY, dtype=torch.long),
            "reward": torch.zeros(CAPACITY),
            "done": torch.zeros(CAPACITY),
        }

    def add(self, **new):
        for name, rows in new.items():
            self.data[name] = torch.cat([self.data[name], rows])[-CAPACITY:]

    def sample(self, n):
        idx = torch.randint(0, CAPACITY, (n,))
        return {name: rows[idx] for name, rows in self.data.items()}


class RingMemory(Memory):
    def __init__(self):
        super().__init__()
        self.at = 0

    def add(self, **new):
        n = len(new["reward"])
        idx = (self.at + torch.arange(n)) % CAPACITY
        for name, rows in new.items():
            self.data[name][idx] = rows
        self.at = (self.at + n) % CAPACITY


def q_net():
    return nn.Sequential(nn.Linear(OBS, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, ACTIONS))


class Agent:
    def __init__(self):
        self.net = q_net()
        self.target = copy.deepcopy(self.net).requires_grad_(False)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=3e-4, fused=True)

    @torch.no_grad()
    def act(self, obs, eps=0.05):
        greedy = self.net(obs).argmax(1)
        return torch.where(torch.rand(len(obs)) < eps, torch.randint(0, ACTIONS, (len(obs),)), greedy)

    def learn(self, b, gamma=0.97):
        with torch.no_grad():
            best = self.net(b["next_obs"]).argmax(1, keepdim=True)
            goal = b["reward"] + gamma * (1 - b["done"]) * self.target(b["next_obs"]).gather(1, best).squeeze(1)
        q = self.net(b["obs"]).gather(1, b["action"][:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(q, goal)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()

    @torch.no_grad()
    def track(self, tau=0.005):
        for t, s in zip(self.target.parameters(), self.net.parameters()):
            t.lerp_(s, tau)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    args = p.parse_args()

    torch.manual_seed(0)
    cells, agent = Cells(), Agent()
    memory = RingMemory() if args.better else Memory()
    obs = cells.obs
    times, step = [], 0
    end = time.perf_counter() + args.seconds
    while time.perf_counter() < end:
        t0 = time.perf_counter()
        action = agent.act(obs)
        next_obs, reward, done = cells.step(action)
        memory.add(obs=obs, next_obs=next_obs, action=action, reward=reward, done=done)
        obs = next_obs
        for _ in range(2):
            loss = agent.learn(memory.sample(512))
        agent.track()
        times.append(time.perf_counter() - t0)
        step += 1
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}, reward {reward.mean().item():.3f}")

    print(f"{step} steps, mean {1e3 * sum(times) / len(times):.1f} ms")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
