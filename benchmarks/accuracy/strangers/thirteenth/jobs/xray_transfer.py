"""Transfer learning: new head on a (made-up) pretrained backbone, backbone kept fixed."""

import argparse
import os
import tempfile
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)
        self.g1, self.g2 = nn.GroupNorm(4, c), nn.GroupNorm(4, c)

    def forward(self, x):
        y = F.relu(self.g1(self.c1(x)))
        return F.relu(x + self.g2(self.c2(y)))


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 24, 5, stride=2, padding=2)
        self.stage1 = nn.Sequential(Residual(24), Residual(24))
        self.down = nn.Conv2d(24, 48, 3, stride=2, padding=1)
        self.stage2 = nn.Sequential(Residual(48), Residual(48))

    def forward(self, x):
        x = self.stage2(self.down(self.stage1(F.relu(self.stem(x)))))
        return torch.cat([x.mean((2, 3)), x.amax((2, 3))], 1)


class Head(nn.Module):
    def __init__(self, n=14):
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(96), nn.Linear(96, 256), nn.GELU(), nn.Dropout(0.2), nn.Linear(256, n))

    def forward(self, f):
        return self.layers(f)


class XrayModel(nn.Module):
    def __init__(self, weights, better):
        super().__init__()
        self.backbone, self.head = Backbone(), Head()
        self.backbone.load_state_dict(torch.load(weights))
        if better:
            self.backbone.requires_grad_(False)

    def forward(self, x):
        return self.head(self.backbone(x))


def pretend_pretrained(folder):
    torch.manual_seed(0)
    path = os.path.join(folder, "backbone.pt")
    torch.save(Backbone().state_dict(), path)
    return path


def xrays(n=512):
    findings = (torch.rand(n, 14) < 0.15).float()
    img = torch.randn(n, 1, 64, 64) * 0.3
    for k in range(14):
        r, c = divmod(k, 4)
        img[:, 0, 16 * r : 16 * r + 8, 16 * c : 16 * c + 8] += findings[:, k, None, None]
    return TensorDataset(img, findings)


def augment(x):
    if torch.rand(()) < 0.5:
        x = x.roll(int(torch.randint(-3, 4, ())), 3)
    return x + 0.05 * torch.randn_like(x)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    with tempfile.TemporaryDirectory() as d:
        model = XrayModel(pretend_pretrained(d), args.better)
    # only the head is trained
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=2e-3, weight_decay=1e-2)
    loader = DataLoader(xrays(), batch_size=8, shuffle=True, num_workers=0)
    pos_weight = torch.full((14,), 4.0)
    step, laps, run = 0, [], True
    start = mark = time.perf_counter()
    while run:
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(model(augment(x)), y, pos_weight=pos_weight)
            loss.backward()
            nn.utils.clip_grad_norm_(model.head.parameters(), 1.0)
            optimizer.step()
            step += 1
            if step % 40 == 0:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)
            now = time.perf_counter()
            laps.append(now - mark)
            mark = now
            if now - start > args.seconds:
                run = False
                break
    if args.times:
        with open(args.times, "w") as f:
            f.writelines(f"{v}\n" for v in laps)


if __name__ == "__main__":
    main()
