"""Trains on a small glyph collection; many short epochs."""

import argparse
import json
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Glyphs(Dataset):
    def __init__(self, n=256, size=28):
        g = torch.Generator().manual_seed(3)
        self.shapes = torch.rand(20, size, size, generator=g)
        self.y = torch.randint(0, 20, (n,), generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        img = self.shapes[self.y[i]]
        dx, dy = torch.randint(-3, 4, (2,)).tolist()
        img = torch.roll(img, (dx, dy), (0, 1)) + 0.1 * torch.randn(28, 28)
        return img.unsqueeze(0), self.y[i]


class ConvNet(nn.Module):
    def __init__(self, c=24):
        super().__init__()
        layers, last = [], 1
        for _ in range(4):
            layers += [nn.Conv2d(last, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)]
            last = c
        self.body = nn.Sequential(*layers)
        self.fc = nn.Linear(c * 4, 20)

    def forward(self, x):
        return self.fc(self.body(x).flatten(1))


def single_thread(_):
    torch.set_num_threads(1)


def make_loader(keep_alive):
    return DataLoader(
        Glyphs(),
        batch_size=64,
        shuffle=True,
        num_workers=2,
        persistent_workers=keep_alive,
        worker_init_fn=single_thread,
    )


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    a = ap.parse_args()
    torch.manual_seed(0)
    loader = make_loader(a.better)
    net = ConvNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, fused=True)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)
    times = []
    epoch = 0
    begin = last = time.perf_counter()
    while last - begin < a.seconds:
        right = torch.zeros((), dtype=torch.long)
        for x, y in loader:
            out = net(x)
            loss = loss_fn(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            right += (out.argmax(1) == y).sum()
            now = time.perf_counter()
            times.append(now - last)
            last = now
        epoch += 1
        if epoch % 10 == 0:
            print(f"epoch {epoch} loss {loss.item():.3f} acc {right.item() / len(loader.dataset):.3f}")
    if a.times:
        with open(a.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
