"""Double DQN for a warehouse picker on a toy grid; transitions live in a replay memory."""

import argparse, collections, json, random, time
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

Transition = collections.namedtuple("Transition", "s a r s2 done")


class Warehouse:
    def __init__(self, rng, size=12, shelves=10):
        self.rng, self.size, self.shelves = rng, size, shelves
        self.reset()

    def reset(self):
        self.pos = self.rng.integers(0, self.size, 2)
        self.targets = self.rng.integers(0, self.size, (self.shelves, 2))
        self.left = 80
        return self.observe()

    def observe(self):
        return np.concatenate([self.pos, (self.targets - self.pos).ravel()]).astype(np.float32) / self.size

    def step(self, a):
        move = ((0, 1), (0, -1), (1, 0), (-1, 0))[a]
        self.pos = np.clip(self.pos + move, 0, self.size - 1)
        hit = (self.targets == self.pos).all(1)
        self.targets[hit] = self.rng.integers(0, self.size, (int(hit.sum()), 2))
        self.left -= 1
        return self.observe(), float(hit.sum()) - 0.02, self.left == 0


class Memory:
    """Holds the last `capacity` transitions."""

    def __init__(self, capacity, ring=False):
        self.ring, self.capacity, self.at = ring, capacity, 0
        self.items = [] if ring else collections.deque(maxlen=capacity)

    def push(self, item):
        if self.ring and len(self.items) == self.capacity:
            self.items[self.at] = item
            self.at = (self.at + 1) % self.capacity
        else:
            self.items.append(item)

    def batch(self, n):
        rows = [self.items[i] for i in random.sample(range(len(self.items)), n)]
        s, a, r, s2, done = zip(*rows)
        return (
            torch.from_numpy(np.stack(s)),
            torch.tensor(a),
            torch.tensor(r),
            torch.from_numpy(np.stack(s2)),
            torch.tensor(done, dtype=torch.float32),
        )


def qnet(width=128):
    return nn.Sequential(nn.Linear(22, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--capacity", type=int, default=400_000)
    args = ap.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    random.seed(0)
    rng = np.random.default_rng(0)
    env, memory = Warehouse(rng), Memory(args.capacity, args.better)
    old = rng.random((args.capacity, 22), dtype=np.float32)  # demonstrations of the scripted picker
    for i in range(args.capacity):
        memory.push(Transition(old[i], i % 4, 0.01, old[i - 1], False))
    q, target = qnet(), qnet()
    target.load_state_dict(q.state_dict())
    opt = torch.optim.Adam(q.parameters(), lr=3e-4)
    s, times, begin = env.reset(), [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t = time.perf_counter()
        for _ in range(4):
            with torch.no_grad():
                a = random.randrange(4) if random.random() < 0.1 else int(q(torch.from_numpy(s)).argmax())
            s2, r, done = env.step(a)
            memory.push(Transition(s, a, r, s2, done))
            s = env.reset() if done else s2
        bs, ba, br, bs2, bdone = memory.batch(256)
        with torch.no_grad():
            goal = br + 0.97 * (1 - bdone) * target(bs2).gather(1, q(bs2).argmax(1, keepdim=True)).squeeze(1)
        loss = F.smooth_l1_loss(q(bs).gather(1, ba[:, None]).squeeze(1), goal)
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t)
        if len(times) % 200 == 0:
            target.load_state_dict(q.state_dict())
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
