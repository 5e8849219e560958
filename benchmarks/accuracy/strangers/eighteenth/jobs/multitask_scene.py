"""Joint depth, normals and semantic prediction with a shared encoder."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class SceneNet(nn.Module):
    def __init__(self, width=24, classes=13):
        super().__init__()

        def conv(i, o, s=1):
            return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU())

        self.encoder = nn.Sequential(
            conv(3, width, 2),
            conv(width, width),
            conv(width, width * 2, 2),
            conv(width * 2, width * 2),
            conv(width * 2, width * 2),
        )
        self.heads = nn.ModuleDict(
            {
                "depth": nn.Conv2d(width * 2, 1, 1),
                "normals": nn.Conv2d(width * 2, 3, 1),
                "semantic": nn.Conv2d(width * 2, classes, 1),
            }
        )

    def forward(self, x):
        h = self.encoder(x)
        return {name: head(h) for name, head in self.heads.items()}


def losses(out, batch):
    return {
        "depth": F.l1_loss(out["depth"], batch["depth"]),
        "normals": 1 - F.cosine_similarity(out["normals"], batch["normals"], dim=1).mean(),
        "semantic": F.cross_entropy(out["semantic"], batch["semantic"]),
    }


WEIGHTS = {"depth": 1.0, "normals": 0.5, "semantic": 1.0}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()

    torch.manual_seed(0)
    n, size = 96, 96
    scenes = {
        "image": torch.rand(n, 3, size, size),
        "depth": torch.rand(n, 1, size // 4, size // 4) * 10,
        "normals": F.normalize(torch.randn(n, 3, size // 4, size // 4), dim=1),
        "semantic": torch.randint(0, 13, (n, size // 4, size // 4)),
    }
    model = SceneNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    history = {name: 0.0 for name in WEIGHTS}

    times = []
    last = time.perf_counter()
    stop = last + args.seconds
    while last < stop:
        idx = torch.randint(0, n, (8,))
        batch = {k: v[idx] for k, v in scenes.items()}
        parts = losses(model(batch["image"]), batch)
        optimizer.zero_grad()
        if args.better:
            sum(WEIGHTS[name] * value for name, value in parts.items()).backward()
        else:
            for name, value in parts.items():
                (WEIGHTS[name] * value).backward(retain_graph=True)
        optimizer.step()
        for name, value in parts.items():
            history[name] = 0.98 * history[name] + 0.02 * value.item()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print(len(times), "steps", {k: round(v, 3) for k, v in history.items()})
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
