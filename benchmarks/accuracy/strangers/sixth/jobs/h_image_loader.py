import argparse
import json
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Thumbs(Dataset):
    """uint8 thumbnails in memory, flipped and scaled when fetched."""

    def __init__(self, n=3000):
        g = torch.Generator().manual_seed(0)
        self.x = torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8, generator=g)
        self.y = torch.randint(0, 10, (n,), generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        x = self.x[i]
        if torch.rand(()) < 0.5:
            x = x.flip(-1)
        return x, self.y[i]


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.f = nn.Sequential(
            nn.Conv2d(c, c, 3, padding=1, bias=False),
            nn.BatchNorm2d(c),
            nn.ReLU(inplace=True),
            nn.Conv2d(c, c, 3, padding=1, bias=False),
            nn.BatchNorm2d(c),
        )

    def forward(self, x):
        return torch.relu(x + self.f(x))


def network():
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, stride=2, padding=2),
        Residual(32),
        Residual(32),
        nn.Conv2d(32, 96, 3, stride=2, padding=1),
        Residual(96),
        Residual(96),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(96, 10),
    ).to(memory_format=torch.channels_last)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(Thumbs(), batch_size=48, shuffle=True, drop_last=True)
    net = network()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, fused=True)
    loss_fn = nn.CrossEntropyLoss()
    times, right, seen = [], 0, 0
    begin = last = time.perf_counter()
    while last - begin < args.seconds:
        for x, y in loader:
            x = x.to(torch.float32).div_(255).sub_(0.5).contiguous(memory_format=torch.channels_last)
            out = net(x)
            loss = loss_fn(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            right += (out.argmax(1) == y).sum().item()
            seen += len(y)
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if len(times) % 10 == 0:
                print(f"batch {len(times)} loss {loss.item():.3f} acc {right / seen:.3f}")
            if now - begin >= args.seconds:
                break
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
