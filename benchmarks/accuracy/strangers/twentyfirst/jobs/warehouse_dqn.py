"""Double DQN for dispatching warehouse carts; many simulated aisles are stepped together."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn

STATE, ACTIONS, ENVS = 48, 9, 32


class Aisles:
    """Vectorised toy simulator: carts drift, the right action pushes them back."""

    def __init__(self, seed=0):
        self.g = torch.Generator().manual_seed(seed)
        self.push = torch.randn(ACTIONS, STATE, generator=self.g) * 0.2
        self.state = torch.randn(ENVS, STATE, generator=self.g)

    def step(self, action):
        noise = 0.05 * torch.randn(ENVS, STATE, generator=self.g)
        nxt = 0.97 * self.state + self.push[action] + noise
        reward = -nxt.square().mean(1)
        done = nxt.abs().amax(1) > 6
        nxt[done] = 0.0
        previous, self.state = self.state, nxt
        return previous, reward, nxt, done.float()


class ReplayMemory:
    def __init__(self, capacity):
        self.capacity = capacity
        self.fields = None

    def add(self, *items):
        if self.fields is None:
            self.fields = list(items)
        else:
            self.fields = [torch.cat([old, new])[-self.capacity :] for old, new in zip(self.fields, items)]

    def sample(self, n):
        idx = torch.randint(0, len(self.fields[0]), (n,))
        return [f[idx] for f in self.fields]


class RingMemory:
    def __init__(self, capacity):
        self.capacity, self.at, self.size = capacity, 0, 0
        self.fields = None

    def add(self, *items):
        if self.fields is None:
            self.fields = [torch.empty(self.capacity, *i.shape[1:], dtype=i.dtype) for i in items]
        n = len(items[0])
        idx = (self.at + torch.arange(n)) % self.capacity
        for f, i in zip(self.fields, items):
            f[idx] = i
        self.at = (self.at + n) % self.capacity
        self.size = min(self.size + n, self.capacity)

    def sample(self, n):
        idx = torch.randint(0, self.size, (n,))
        return [f[idx] for f in self.fields]


def q_network(width=320):
    return nn.Sequential(
        nn.Linear(STATE, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, ACTIONS)
    )


@torch.no_grad()
def act(net, state, epsilon):
    greedy = net(state).argmax(1)
    explore = torch.rand(len(state)) < epsilon
    return torch.where(explore, torch.randint(0, ACTIONS, greedy.shape), greedy)


def td_loss(net, target_net, batch, gamma=0.98):
    state, action, reward, nxt, done = batch
    q = net(state).gather(1, action[:, None]).squeeze(1)
    with torch.no_grad():
        best = net(nxt).argmax(1, keepdim=True)
        goal = reward + gamma * (1 - done) * target_net(nxt).gather(1, best).squeeze(1)
    return F.smooth_l1_loss(q, goal)


def warm_start(memory, env, transitions):
    """Fills the memory from the log of the rule-based dispatcher."""
    n = transitions
    state = torch.randn(n, STATE)
    action = torch.randint(0, ACTIONS, (n,))
    nxt = 0.97 * state + env.push[action] + 0.05 * torch.randn(n, STATE)
    memory.add(state, action, -nxt.square().mean(1), nxt, torch.zeros(n))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    parser.add_argument("--capacity", type=int, default=250_000)
    args = parser.parse_args()
    torch.manual_seed(0)

    env = Aisles()
    memory = RingMemory(args.capacity) if args.better else ReplayMemory(args.capacity)
    warm_start(memory, env, args.capacity)
    net, target_net = q_network(), q_network()
    target_net.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-4)

    times, step, total = [], 0, 0.0
    start = time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        began = time.perf_counter()
        action = act(net, env.state, max(0.05, 0.5 - step / 2000))
        state, reward, nxt, done = env.step(action)
        memory.add(state, action, reward, nxt, done)
        for _ in range(4):
            loss = td_loss(net, target_net, memory.sample(768))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % 100 == 0:
            target_net.load_state_dict(net.state_dict())
        total = 0.98 * total + 0.02 * reward.mean().item()
        step += 1
        times.append(time.perf_counter() - began)
        if step % 50 == 0:
            print(f"step {step}: reward {total:.3f} td {loss.item():.4f}")

    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
