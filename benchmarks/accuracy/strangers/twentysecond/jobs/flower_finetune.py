"""Transfer learning of a small residual network to the flower catalogue (17 species)."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn

SPECIES = 17
SIDE = 72
CROP = 64


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.skip = None
        if stride != 1 or cin != cout:
            self.skip = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.skip is None else self.skip(x)), inplace=True)


class Backbone(nn.Module):
    def __init__(self, widths=(32, 64, 128, 192)):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 3, 2, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True)
        )
        layers, cin = [], widths[0]
        for i, w in enumerate(widths):
            layers.append(Block(cin, w, 1 if i == 0 else 2))
            cin = w
        self.layers = nn.Sequential(*layers)
        self.out_features = cin

    def forward(self, x):
        return self.layers(self.stem(x)).mean((2, 3))


class FlowerNet(nn.Module):
    def __init__(self, backbone, classes):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Sequential(
            nn.LayerNorm(backbone.out_features),
            nn.Linear(backbone.out_features, 128),
            nn.GELU(),
            nn.Dropout(0.2),
            nn.Linear(128, classes),
        )

    def forward(self, x):
        return self.head(self.backbone(x))


def load_backbone():
    torch.manual_seed(7)
    net = Backbone()
    for m in net.modules():
        if isinstance(m, nn.Conv2d):
            nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
    return net


def catalogue(n=1200, seed=1):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(SPECIES, (n,), generator=g)
    hue = torch.rand(SPECIES, 3, 1, 1, generator=g)
    photos = (hue[labels] * 0.5 + 0.5 * torch.rand(n, 3, SIDE, SIDE, generator=g)) * 255
    return photos.to(torch.uint8), labels


def augment(photos, g):
    top, left = torch.randint(SIDE - CROP + 1, (2,), generator=g).tolist()
    x = photos[:, :, top : top + CROP, left : left + CROP].float().div_(127.5).sub_(1)
    if torch.rand((), generator=g) < 0.5:
        x = x.flip(3)
    gain = 0.8 + 0.4 * torch.rand(len(x), 1, 1, 1, generator=g)
    return (x * gain).contiguous(memory_format=torch.channels_last)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--batch", type=int, default=24)
    args = ap.parse_args()

    photos, labels = catalogue()
    model = FlowerNet(load_backbone(), SPECIES).to(memory_format=torch.channels_last)
    if args.better:
        model.backbone.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=2e-3, weight_decay=0.01, fused=True)

    model.train()
    model.backbone.eval()
    g = torch.Generator().manual_seed(3)
    times, running, step = [], torch.zeros(()), 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        for idx in torch.randperm(len(labels), generator=g).split(args.batch):
            t0 = time.perf_counter()
            logits = model(augment(photos[idx], g))
            loss = F.cross_entropy(logits, labels[idx], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running += loss.detach()
            step += 1
            if step % 40 == 0:
                print(f"step {step} loss {running.item() / 40:.4f}")
                running.zero_()
            times.append(time.perf_counter() - t0)
            if time.perf_counter() - begin > args.seconds:
                break
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
