"""DQN on a small 'catch the ball' game from pixels."""

import argparse
import json
import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=10)
parser.add_argument("--better", action="store_true")
parser.add_argument("--times", default=None)
args = parser.parse_args()

random.seed(1)
np.random.seed(1)
torch.manual_seed(1)


class CatchEnv:
    SIZE = 42

    def reset(self):
        self.ball = [0, np.random.randint(2, self.SIZE - 2)]
        self.paddle = self.SIZE // 2
        self.frames = [self.draw()] * 4
        return np.stack(self.frames)

    def draw(self):
        img = np.zeros((self.SIZE, self.SIZE), dtype=np.uint8)
        y, x = self.ball
        img[max(0, y - 1) : y + 2, x - 1 : x + 2] = 255
        img[-2:, self.paddle - 3 : self.paddle + 4] = 255
        return img

    def step(self, action):
        self.paddle = int(np.clip(self.paddle + 2 * (action - 1), 4, self.SIZE - 5))
        self.ball[0] += 2
        done = self.ball[0] >= self.SIZE - 2
        reward = 0.0
        if done:
            reward = 1.0 if abs(self.ball[1] - self.paddle) <= 4 else -1.0
        self.frames = self.frames[1:] + [self.draw()]
        return np.stack(self.frames), reward, done


class ReplayBuffer:
    def __init__(self, capacity):
        self.capacity = capacity
        self.data = []
        self.pos = 0

    def push(self, *transition):
        if len(self.data) < self.capacity:
            self.data.append(transition)
        else:
            self.data[self.pos] = transition
        self.pos = (self.pos + 1) % self.capacity

    def sample(self, n):
        states, actions, rewards, next_states, dones = zip(*random.sample(self.data, n))
        if args.better:
            states = torch.from_numpy(np.stack(states))
            next_states = torch.from_numpy(np.stack(next_states))
        else:
            states = torch.tensor(states)
            next_states = torch.tensor(next_states)
        return (
            states.float() / 255,
            torch.tensor(actions),
            torch.tensor(rewards),
            next_states.float() / 255,
            torch.tensor(dones, dtype=torch.float32),
        )


class QNet(nn.Module):
    def __init__(self, n_actions=3):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(4, 16, 8, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(), nn.Flatten()
        )
        self.head = nn.Sequential(nn.Linear(32 * 3 * 3, 128), nn.ReLU(), nn.Linear(128, n_actions))

    def forward(self, x):
        return self.head(self.conv(x))


env, buffer = CatchEnv(), ReplayBuffer(4000)
q, target = QNet(), QNet()
target.load_state_dict(q.state_dict())
optimizer = torch.optim.Adam(q.parameters(), lr=3e-4, fused=True)
GAMMA, BATCH = 0.97, 32


def act(state, eps):
    if random.random() < eps:
        return random.randrange(3)
    with torch.no_grad():
        return int(q(torch.from_numpy(state).float().unsqueeze(0) / 255).argmax())


def learn():
    s, a, r, s2, d = buffer.sample(BATCH)
    with torch.no_grad():
        goal = r + GAMMA * (1 - d) * target(s2).max(1).values
    loss = F.smooth_l1_loss(q(s).gather(1, a[:, None]).squeeze(1), goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


state = env.reset()
for _ in range(500):
    action = random.randrange(3)
    nxt, reward, done = env.step(action)
    buffer.push(state, action, reward, nxt, done)
    state = env.reset() if done else nxt

times, returns, step = [], [], 0
start = time.perf_counter()
while time.perf_counter() - start < args.seconds:
    t0 = time.perf_counter()
    action = act(state, max(0.05, 1 - step / 2000))
    nxt, reward, done = env.step(action)
    buffer.push(state, action, reward, nxt, done)
    if done:
        returns.append(reward)
    state = env.reset() if done else nxt
    loss = learn()
    step += 1
    if step % 500 == 0:
        target.load_state_dict(q.state_dict())
    times.append(time.perf_counter() - t0)
    if step % 200 == 0:
        print(f"step {step} loss {loss:.4f} mean return {np.mean(returns[-50:]):.2f}")

print(f"{step} steps")
if args.times:
    with open(args.times, "w") as f:
        json.dump(times, f)
