import argparse, collections, json, random, time
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

Transition = collections.namedtuple("Transition", "state action reward next_state done")


class ReplayMemory(object):
    def __init__(self, capacity, stacked):
        self.memory = collections.deque([], maxlen=capacity)
        self.stacked = stacked

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, n):
        rows = random.sample(self.memory, n)
        cols = Transition(*zip(*rows))
        pack = (lambda c: torch.from_numpy(np.stack(c))) if self.stacked else (lambda c: torch.tensor(c))
        return (
            pack(cols.state),
            torch.tensor(cols.action),
            torch.tensor(cols.reward),
            pack(cols.next_state),
            torch.tensor(cols.done),
        )

    def __len__(self):
        return len(self.memory)


class QNet(nn.Module):
    def __init__(self, n_obs, n_act):
        super().__init__()
        self.l1 = nn.Linear(n_obs, 256)
        self.l2 = nn.Linear(256, 256)
        self.val = nn.Linear(256, 1)
        self.adv = nn.Linear(256, n_act)

    def forward(self, x):
        x = F.relu(self.l1(x))
        x = F.relu(self.l2(x))
        a = self.adv(x)
        return self.val(x) + a - a.mean(1, keepdim=True)


class GridWorld:
    """Noisy sensor readings around a drifting position."""

    def __init__(self, n_obs=192):
        self.rng = np.random.default_rng(1)
        self.n = n_obs
        self.proj = self.rng.standard_normal((4, n_obs)).astype(np.float32)
        self.pos = np.zeros(4, np.float32)

    def observe(self):
        return self.pos @ self.proj

    def step(self, a):
        self.pos[a] += 0.1
        self.pos *= 0.97
        self.pos += self.rng.standard_normal(4).astype(np.float32) * 0.02
        return self.observe(), float(-abs(self.pos).sum()), bool(self.rng.random() < 0.01)


ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=12)
ap.add_argument("--better", action="store_true")
ap.add_argument("--times")
args = ap.parse_args()

random.seed(0)
torch.manual_seed(0)
BATCH = 128
GAMMA = 0.98
env = GridWorld()
policy, target = QNet(192, 4), QNet(192, 4)
target.load_state_dict(policy.state_dict())
target.requires_grad_(False)
opt = torch.optim.AdamW(policy.parameters(), lr=1e-4, amsgrad=True, fused=True)
mem = ReplayMemory(2000, args.better)
state = env.observe()
for _ in range(1000):
    a = random.randrange(4)
    nxt, r, d = env.step(a)
    mem.push(state, a, r, nxt, d)
    state = nxt

times = []
start = time.perf_counter()
while time.perf_counter() - start < args.seconds:
    t = time.perf_counter()
    for _ in range(4):
        if random.random() < 0.1:
            a = random.randrange(4)
        else:
            with torch.inference_mode():
                a = policy(torch.from_numpy(state).unsqueeze(0)).argmax(1).item()
        nxt, r, d = env.step(a)
        mem.push(state, a, r, nxt, d)
        state = nxt

    for _ in range(2):
        s, a, r, s2, d = mem.sample(BATCH)
        q = policy(s).gather(1, a[:, None]).squeeze(1)
        with torch.no_grad():
            best = policy(s2).argmax(1, keepdim=True)
            y = r + GAMMA * target(s2).gather(1, best).squeeze(1) * (~d)
        loss = F.smooth_l1_loss(q, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    times.append(time.perf_counter() - t)
    if len(times) % 200 == 0:
        target.load_state_dict(policy.state_dict())
        print("iter", len(times), "td", loss.item())

if args.times:
    json.dump(times, open(args.times, "w"))
