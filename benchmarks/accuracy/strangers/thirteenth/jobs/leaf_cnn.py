"""Leaf-disease CNN on a small made-up image set, with DataLoader workers."""

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Leaves(Dataset):
    def __init__(self, n, train=True, seed=0):
        r = np.random.RandomState(seed)
        self.labels = r.randint(0, 5, n)
        base = r.randint(0, 80, (n, 32, 32, 3))
        for k, y in enumerate(self.labels):
            for _ in range(1 + 2 * y):
                a, b = r.randint(2, 28, 2)
                base[k, a : a + 3, b : b + 3] = (160, 110, 40)
        self.images = base.astype(np.uint8)
        self.train = train

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        img = self.images[i]
        if self.train:
            if np.random.rand() < 0.5:
                img = img[:, ::-1]
            k = np.random.randint(0, 4)
            img = np.rot90(img, k)
        x = torch.from_numpy(np.ascontiguousarray(img)).permute(2, 0, 1).float().div_(255)
        return x, int(self.labels[i])


def conv_block(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


def build():
    return nn.Sequential(
        conv_block(3, 16),
        conv_block(16, 24, 2),
        conv_block(24, 48, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(48, 5),
    )


def validate(model, loader):
    model.eval()
    right = total = 0
    with torch.no_grad():
        for x, y in loader:
            right += (model(x).argmax(1) == y).sum().item()
            total += len(y)
    model.train()
    return right / total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    a = ap.parse_args()
    torch.manual_seed(0)
    np.random.seed(0)
    train_set, val_set = Leaves(320), Leaves(64, train=False, seed=1)
    loader = DataLoader(
        train_set, batch_size=32, shuffle=True, num_workers=2, drop_last=True, persistent_workers=a.better
    )
    val_loader = DataLoader(val_set, batch_size=64)
    model = build()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    plan = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=200)
    lossfn = nn.CrossEntropyLoss(label_smoothing=0.05)
    times, epoch, going = [], 0, True
    end = time.perf_counter() + a.seconds
    mark = time.perf_counter()
    while going:
        total = 0.0
        for x, y in loader:
            opt.zero_grad()
            loss = lossfn(model(x), y)
            loss.backward()
            opt.step()
            total += loss.item()
            now = time.perf_counter()
            times.append(now - mark)
            mark = now
            if now > end:
                going = False
                break
        plan.step()
        epoch += 1
        if epoch % 5 == 0:
            print(f"epoch {epoch} loss {total / len(loader):.4f} val {validate(model, val_loader):.3f}", flush=True)
    if a.times:
        np.savetxt(a.times, np.array(times))


if __name__ == "__main__":
    main()
