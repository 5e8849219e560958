"""Self-play for Connect Four: N boards are played side by side, policy/value net, REINFORCE update at the end.

A step is one move on all boards (the update is done when every game of the round is over).
"""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

ROWS, COLS = 6, 7


class Net(nn.Module):
    def __init__(self, ch=112):
        super().__init__()
        self.stem = nn.Conv2d(2, ch, 3, padding=1)
        self.b1 = nn.Conv2d(ch, ch, 3, padding=1)
        self.b2 = nn.Conv2d(ch, ch, 3, padding=1)
        self.pi = nn.Linear(ch * ROWS * COLS, COLS)
        self.v = nn.Linear(ch * ROWS * COLS, 1)

    def forward(self, s):
        h = F.relu(self.stem(s))
        h = F.relu(h + self.b2(F.relu(self.b1(h))))
        h = h.flatten(1)
        return self.pi(h), torch.tanh(self.v(h)).squeeze(1)


def line_kernels():
    ks = torch.zeros(4, 1, 4, 4)
    ks[0, 0, 0, :] = 1
    ks[1, 0, :, 0] = 1
    ks[2, 0].fill_diagonal_(1)
    ks[3, 0] = torch.eye(4).flip(1)
    return ks


KERNELS = line_kernels()


class Boards:
    def __init__(self, n):
        self.n = n
        self.reset()

    def reset(self):
        self.grid = torch.zeros(self.n, 2, ROWS, COLS)
        self.height = torch.zeros(self.n, COLS, dtype=torch.long)
        self.over = torch.zeros(self.n, dtype=torch.bool)
        self.result = torch.zeros(self.n)
        self.player = 0

    def observe(self):
        return self.grid if self.player == 0 else self.grid.flip(1)

    def legal(self):
        return self.height < ROWS

    def play(self, col):
        live = (~self.over).nonzero().squeeze(1)
        c = col[live]
        r = self.height[live, c]
        self.grid[live, self.player, r, c] = 1
        self.height[live, c] += 1
        mine = F.pad(self.grid[:, self.player : self.player + 1], (0, 3, 0, 3))
        # anti-diagonals need room on the left as well
        mine = F.pad(mine, (3, 0, 0, 0))
        won = (F.conv2d(mine, KERNELS) > 3.5).flatten(1).any(1) & ~self.over
        self.result[won] = 1.0 if self.player == 0 else -1.0
        self.over |= won | ~self.legal().any(1)
        self.player ^= 1


def evaluate(net, obs, at_once):
    if at_once:
        return net(obs)[0]
    return torch.cat([net(o.unsqueeze(0))[0] for o in obs])


def learn(net, opt, traj, result):
    obs = torch.cat([t[0] for t in traj])
    act = torch.cat([t[1] for t in traj])
    keep = torch.cat([t[2] for t in traj])
    z = torch.cat([result * (1 if k % 2 == 0 else -1) for k in range(len(traj))])
    pick = keep.nonzero().squeeze(1)
    pick = pick[torch.randperm(len(pick))[:192]]
    logits, v = net(obs[pick])
    lp = F.log_softmax(logits, 1).gather(1, act[pick, None]).squeeze(1)
    loss = -(lp * (z[pick] - v.detach())).mean() + F.mse_loss(v, z[pick])
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.AdamW(net.parameters(), lr=5e-4, fused=True)
    boards = Boards(24)
    traj, times, rounds = [], [], 0
    t0 = time.perf_counter()
    while time.perf_counter() - t0 < args.seconds:
        t = time.perf_counter()
        obs = boards.observe().clone()
        with torch.inference_mode():
            logits = evaluate(net, obs, args.better)
        logits = logits.clone().masked_fill(~boards.legal(), -1e9)
        move = torch.multinomial(logits.softmax(1), 1).squeeze(1)
        traj.append((obs, move, ~boards.over))
        boards.play(move)
        if boards.over.all():
            loss = learn(net, opt, traj, boards.result)
            rounds += 1
            if rounds % 5 == 0:
                print(
                    f"round {rounds} plies {len(traj)} first wins {(boards.result > 0).float().mean():.2f} loss {loss:.3f}"
                )
            traj = []
            boards.reset()
        times.append(time.perf_counter() - t)
    print("plies", len(times), "rounds", rounds)
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
