"""Fit a new classification head on a pretrained ViT (weights are random here)."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn
from transformers import ViTConfig, ViTModel


class BirdClassifier(nn.Module):
    def __init__(self, backbone, classes):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Sequential(nn.Linear(backbone.config.hidden_size, 128), nn.GELU(), nn.Linear(128, classes))

    def forward(self, x):
        out = self.backbone(pixel_values=x)
        return self.head(out.last_hidden_state[:, 0])


def make_backbone():
    config = ViTConfig(
        hidden_size=144,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=576,
        image_size=64,
        patch_size=8,
        attn_implementation="sdpa",
    )
    return ViTModel(config, add_pooling_layer=False).eval()


class Birds:
    """64x64 crops with flips and brightness jitter."""

    def __init__(self, n=600, classes=40):
        g = torch.Generator().manual_seed(1)
        self.y = torch.randint(0, classes, (n,), generator=g)
        self.x = torch.rand(n, 3, 72, 72, generator=g)
        self.x += self.y.view(-1, 1, 1, 1) / classes

    def sample(self, k):
        i = torch.randint(0, len(self.y), (k,))
        dy, dx = torch.randint(0, 8, (2,)).tolist()
        x = self.x[i, :, dy : dy + 64, dx : dx + 64]
        if torch.rand(()) < 0.5:
            x = x.flip(-1)
        return (x * (0.9 + 0.2 * torch.rand(k, 1, 1, 1)) - 0.5) / 0.5, self.y[i]


def parse():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    return ap.parse_args()


def main():
    args = parse()
    torch.manual_seed(0)
    data = Birds()
    model = BirdClassifier(make_backbone(), 40)
    if args.better:
        model.backbone.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=3e-4, fused=True)
    n = sum(p.numel() for p in model.head.parameters())
    print(f"training {n} head parameters")

    times = []
    seen = hits = 0
    begin = last = time.perf_counter()
    while last - begin < args.seconds:
        x, y = data.sample(12)
        logits = model(x)
        loss = F.cross_entropy(logits, y, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hits += (logits.argmax(1) == y).sum().item()
        seen += len(y)
        if len(times) % 30 == 0:
            print(f"step {len(times):4d}  loss {loss.item():.3f}  acc {hits / seen:.3f}")
            seen = hits = 0
        now = time.perf_counter()
        times.append(now - last)
        last = now

    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
