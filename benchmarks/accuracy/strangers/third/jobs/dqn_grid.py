import argparse, collections, json, random, time
import numpy as np
import torch
import torch.nn as nn

ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=6)
ap.add_argument("--times")
ap.add_argument("--better", action="store_true")
ap.add_argument("--batch", type=int, default=128)
args = ap.parse_args()
random.seed(0), torch.manual_seed(0), np.random.seed(0)

Transition = collections.namedtuple("Transition", "state action reward next_state done")
K = 8


class Grid:
    """Agent looks for a goal on a K x K board; state is the board as planes, flattened."""

    def reset(self):
        self.pos, self.goal, self.t = (
            [random.randrange(K), random.randrange(K)],
            [random.randrange(K), random.randrange(K)],
            0,
        )
        return self.state()

    def state(self):
        s = [0.0] * (2 * K * K)
        s[self.pos[0] * K + self.pos[1]] = 1.0
        s[K * K + self.goal[0] * K + self.goal[1]] = 1.0
        return s

    def step(self, a):
        d = [(0, 1), (0, -1), (1, 0), (-1, 0)][a]
        self.pos = [min(K - 1, max(0, self.pos[0] + d[0])), min(K - 1, max(0, self.pos[1] + d[1]))]
        self.t += 1
        win = self.pos == self.goal
        return self.state(), 1.0 if win else -0.01, win or self.t > 60


class ListReplay:
    def __init__(self, size):
        self.buf = collections.deque(maxlen=size)

    def push(self, *tr):
        self.buf.append(Transition(*tr))

    def sample(self, n):
        b = Transition(*zip(*random.sample(self.buf, n)))
        return (
            torch.tensor(b.state),
            torch.tensor(b.action),
            torch.tensor(b.reward),
            torch.tensor(b.next_state),
            torch.tensor(b.done, dtype=torch.float32),
        )

    def __len__(self):
        return len(self.buf)


class ArrayReplay:
    def __init__(self, size, dim):
        self.s, self.s2 = np.zeros((2, size, dim), np.float32)
        self.a, self.r, self.d = np.zeros(size, np.int64), np.zeros(size, np.float32), np.zeros(size, np.float32)
        self.i, self.n, self.size = 0, 0, size

    def push(self, s, a, r, s2, d):
        k = self.i
        self.s[k], self.a[k], self.r[k], self.s2[k], self.d[k] = s, a, r, s2, d
        self.i, self.n = (k + 1) % self.size, min(self.n + 1, self.size)

    def sample(self, n):
        j = np.random.randint(0, self.n, n)
        return tuple(torch.from_numpy(v[j]) for v in (self.s, self.a, self.r, self.s2, self.d))

    def __len__(self):
        return self.n


def mlp():
    return nn.Sequential(nn.Linear(2 * K * K, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 4))


q, target = mlp(), mlp()
target.load_state_dict(q.state_dict())
opt = torch.optim.Adam(q.parameters(), lr=5e-4)
memory = ArrayReplay(20_000, 2 * K * K) if args.better else ListReplay(20_000)
env, times = Grid(), []
s, eps = env.reset(), 1.0
while len(memory) < 500:
    a = random.randrange(4)
    s2, r, d = env.step(a)
    memory.push(s, a, r, s2, d)
    s = env.reset() if d else s2

end = time.perf_counter() + args.seconds
while time.perf_counter() < end:
    t0 = time.perf_counter()
    for _ in range(4):
        if random.random() < eps:
            a = random.randrange(4)
        else:
            with torch.no_grad():
                a = q(torch.tensor(s)).argmax().item()
        s2, r, d = env.step(a)
        memory.push(s, a, r, s2, d)
        s = env.reset() if d else s2
    st, ac, rw, ns, dn = memory.sample(args.batch)
    with torch.no_grad():
        y = rw + 0.97 * (1 - dn) * target(ns).max(1).values
    loss = nn.functional.smooth_l1_loss(q(st).gather(1, ac[:, None]).squeeze(1), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if len(times) % 100 == 0:
        target.load_state_dict(q.state_dict())
    eps = max(0.05, eps * 0.999)
    times.append(time.perf_counter() - t0)
print(f"{len(times)} updates, loss {loss.item():.4f}, eps {eps:.2f}")
if args.times:
    json.dump(times, open(args.times, "w"))
