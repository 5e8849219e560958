"""Few-shot learning with a closed-form ridge-regression head (R2-D2), a meta-batch of episodes per step."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

EPISODES, WAY, SHOT, QUERY, SIDE = 32, 5, 5, 5, 16
BASE_CLASSES = 64

torch.manual_seed(14)


class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.c2 = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.fc = nn.Linear(16 * (SIDE // 4) ** 2, 64)

    def forward(self, x):
        h = F.leaky_relu(self.c1(x), 0.1)
        h = F.leaky_relu(self.c2(h), 0.1)
        return F.normalize(self.fc(h.flatten(1)), dim=1)


class RidgeHead(nn.Module):
    """W = Z^T (Z Z^T + lambda I)^-1 Y on the support set; learnt lambda, scale and shift."""

    def __init__(self, better):
        super().__init__()
        self.better = better
        self.log_lam = nn.Parameter(torch.zeros(()))
        self.scale = nn.Parameter(torch.tensor(5.0))
        self.shift = nn.Parameter(torch.zeros(()))

    def fit(self, z, y):
        eye = torch.eye(z.size(-2))
        gram = z @ z.transpose(-1, -2) + self.log_lam.exp() * eye
        return z.transpose(-1, -2) @ torch.linalg.solve(gram, y)

    def forward(self, support, onehot, query):
        if self.better:
            return self.scale * (query @ self.fit(support, onehot)) + self.shift
        logits = []
        for s, y, q in zip(support, onehot, query):
            logits.append(q @ self.fit(s, y))
        return self.scale * torch.stack(logits) + self.shift


def episodes(protos, gen):
    """EPISODES x WAY classes, SHOT + QUERY noisy, shifted copies of each class's prototype."""
    ways = torch.rand(EPISODES, BASE_CLASSES, generator=gen).argsort(1)[:, :WAY]
    clean = protos[ways]  # (E, W, S, S)
    noise = 0.8 * torch.randn(EPISODES, WAY, SHOT + QUERY, SIDE, SIDE, generator=gen)
    return clean.unsqueeze(2) + noise


def options():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    return ap.parse_args()


def steps_of(opt):
    """The numbers of steps until the time is over; how long each took is written then."""
    times = []
    begin = last = time.perf_counter()
    while last - begin < opt.seconds:
        yield len(times)
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if opt.times:
        with open(opt.times, "w") as f:
            json.dump(times, f)


def main():
    opt = options()
    gen = torch.Generator().manual_seed(15)
    protos = torch.randn(BASE_CLASSES, SIDE, SIDE, generator=gen)
    embed, head = Embed(), RidgeHead(opt.better)
    params = list(embed.parameters()) + list(head.parameters())
    optim = torch.optim.Adam(params, lr=1e-3)
    target = torch.arange(WAY).repeat_interleave(SHOT)
    onehot = F.one_hot(target, WAY).float().expand(EPISODES, -1, -1)
    answer = torch.arange(WAY).repeat_interleave(QUERY).repeat(EPISODES)
    running = 0.0
    for step in steps_of(opt):
        x = episodes(protos, gen)
        z = embed(x.view(-1, 1, SIDE, SIDE)).view(EPISODES, WAY, SHOT + QUERY, -1)
        support = z[:, :, :SHOT].reshape(EPISODES, WAY * SHOT, -1)
        query = z[:, :, SHOT:].reshape(EPISODES, WAY * QUERY, -1)
        logits = head(support, onehot, query)
        loss = F.cross_entropy(logits.reshape(-1, WAY), answer)
        optim.zero_grad(set_to_none=True)
        loss.backward()
        optim.step()
        running += (logits.detach().reshape(-1, WAY).argmax(1) == answer).float().mean().item()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1} loss {loss.item():.3f} acc {running / 100:.3f}", flush=True)
            running = 0.0


if __name__ == "__main__":
    main()
