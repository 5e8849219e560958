"""Plankton images: compressed records, decoded and augmented in loader workers."""

import argparse, json, time, zlib
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Records(Dataset):
    def __init__(self, n=1500, seed=0):
        rng = np.random.default_rng(seed)
        base = rng.integers(0, 40, (n, 32, 32), dtype=np.uint8)
        self.blobs = [zlib.compress(b.tobytes(), 1) for b in base]
        self.y = rng.integers(0, 8, n)

    def __len__(self):
        return len(self.blobs)

    def augment(self, img, rng):
        if rng.random() < 0.5:
            img = img[:, ::-1]
        if rng.random() < 0.5:
            img = np.rot90(img)
        return np.ascontiguousarray(img, dtype=np.float32) * np.float32(rng.uniform(0.9, 1.1) / 40)

    def __getitem__(self, i):
        img = np.frombuffer(zlib.decompress(self.blobs[i]), np.uint8).reshape(32, 32)
        return torch.from_numpy(self.augment(img, np.random.default_rng()))[None], int(self.y[i])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        c = [1, 32, 64, 96]
        self.f = nn.Sequential(
            *[
                m
                for i, o in zip(c, c[1:])
                for m in (
                    nn.Conv2d(i, o, 3, padding=1),
                    nn.ReLU(inplace=True),
                    nn.Conv2d(o, o, 3, padding=1),
                    nn.ReLU(inplace=True),
                    nn.MaxPool2d(2),
                )
            ]
        )
        self.h = nn.Linear(96 * 16, 8)

    def forward(self, x):
        return self.h(self.f(x).flatten(1))


@torch.no_grad()
def evaluate(net, loader, batches=5):
    net.eval()
    ok = n = 0
    for k, (x, y) in enumerate(loader):
        if k == batches:
            break
        ok += (net(x).argmax(1) == y).sum().item()
        n += len(y)
    net.train()
    return ok / n


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    a = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = Records()
    loader = DataLoader(
        data, batch_size=32, shuffle=True, drop_last=True, num_workers=2, persistent_workers=True, prefetch_factor=4
    )
    net = Net()
    opt = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, foreach=True)
    stream = iter(loader)
    next(stream)
    steps, prev = [], time.perf_counter()
    start = prev
    seen = torch.zeros(())
    while True:
        batch = next(stream, None)
        if batch is None:
            stream = iter(loader)
            batch = next(stream)
        x, y = batch
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        seen += loss.detach()
        if len(steps) and len(steps) % 50 == 0:
            print(f"step {len(steps)} mean loss {seen.item() / len(steps):.3f}")
        now = time.perf_counter()
        steps.append(now - prev)
        prev = now
        if now - start > a.seconds and len(steps) >= 24:
            break
    del stream
    print("final accuracy %.3f" % evaluate(net, loader))
    if a.times:
        json.dump(steps, open(a.times, "w"))


if __name__ == "__main__":
    main()
