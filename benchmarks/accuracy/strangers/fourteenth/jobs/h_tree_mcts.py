"""Self-play on Connect-4 like boards: Python game logic in the tree, one network batch per simulation wave."""

import argparse
import json
import math
import random
import time

import torch
from torch import nn

COLS, ROWS, GAMES, SIMS = 7, 6, 64, 4


class Net(nn.Module):
    def __init__(self, ch=64):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, ch, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(ch, ch, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(ch, ch, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(ch, 16, 1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.policy, self.value = nn.Linear(16 * ROWS * COLS, COLS), nn.Linear(16 * ROWS * COLS, 1)

    def forward(self, x):
        h = self.body(x)
        return self.policy(h), self.value(h).squeeze(1).tanh()


class Game:
    def __init__(self):
        self.heights, self.cells, self.player = [0] * COLS, [], 0
        self.visits, self.total = [0] * COLS, [0.0] * COLS

    def legal(self):
        return [c for c in range(COLS) if self.heights[c] < ROWS]

    def select(self, prior):
        n = math.sqrt(sum(self.visits) + 1)

        def ucb(c):
            mean = self.total[c] / self.visits[c] if self.visits[c] else 0.0
            return mean + 1.5 * prior[c] * n / (1 + self.visits[c])

        return max(self.legal(), key=ucb)

    def backup(self, c, v):
        self.visits[c] += 1
        self.total[c] += v

    def play(self, c):
        self.cells.append((self.player, self.heights[c], c))
        self.heights[c] += 1
        self.player ^= 1
        self.visits, self.total = [0] * COLS, [0.0] * COLS


def encode(games, extra=None):
    flat = []
    for g, game in enumerate(games):
        cells = game.cells if extra is None else game.cells + [(game.player, game.heights[extra[g]], extra[g])]
        flat += [((g * 2 + (p ^ game.player)) * ROWS + r) * COLS + c for p, r, c in cells]
    board = torch.zeros(len(games) * 2 * ROWS * COLS)
    board[torch.tensor(flat, dtype=torch.long)] = 1.0
    return board.view(len(games), 2, ROWS, COLS)


ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=20)
ap.add_argument("--better", action="store_true", help="no effect")
ap.add_argument("--times")
args = ap.parse_args()
torch.manual_seed(0)
random.seed(0)
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
games = [Game() for _ in range(GAMES)]
times, start = [], time.perf_counter()
while time.perf_counter() - start < args.seconds:
    tic = time.perf_counter()
    boards = encode(games)
    with torch.inference_mode():
        priors = net(boards)[0].softmax(1).tolist()
        for _ in range(SIMS):
            moves = [g.select(p) for g, p in zip(games, priors)]
            values = net(encode(games, moves))[1].tolist()
            for g, c, v in zip(games, moves, values):
                g.backup(c, -v)
    visits = torch.tensor([g.visits for g in games], dtype=torch.float32)
    worth = torch.tensor([sum(g.total) / SIMS for g in games])
    logits, value = net(boards)
    loss = nn.functional.cross_entropy(logits, visits / SIMS) + nn.functional.mse_loss(value, worth)
    opt.zero_grad()
    loss.backward()
    opt.step()
    for i, g in enumerate(games):
        g.play(random.choices(range(COLS), [v if h < ROWS else 0 for v, h in zip(g.visits, g.heights)])[0])
        if len(g.cells) >= 30 or not g.legal():
            games[i] = Game()
    times.append(time.perf_counter() - tic)
print(f"loss {loss.item():.3f}")
if args.times:
    json.dump(times, open(args.times, "w"))
