"""Crop-disease triage with Monte-Carlo dropout: mean, spread and mutual information per leaf."""

import argparse
import json
import time

import torch
from torch import nn


class Backbone(nn.Sequential):
    def __init__(self):
        chan = [3, 24, 48, 96]
        parts = []
        for i, o in zip(chan, chan[1:]):
            parts += [nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2)]
        super().__init__(*parts, nn.AdaptiveAvgPool2d(4), nn.Flatten())


class Head(nn.Sequential):
    def __init__(self, classes=14):
        super().__init__(
            nn.Linear(96 * 16, 1024),
            nn.ReLU(),
            nn.Dropout(0.4),
            nn.Linear(1024, 1024),
            nn.ReLU(),
            nn.Dropout(0.4),
            nn.Linear(1024, classes),
        )


class LeafModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.head = Backbone(), Head()

    def forward(self, x):
        return self.head(self.backbone(x))

    def stochastic(self):
        self.eval()
        for m in self.modules():
            if isinstance(m, nn.Dropout):
                m.train()
        return self


def entropy(p):
    return -(p * p.clamp_min(1e-12).log()).sum(-1)


class Triage:
    def __init__(self, model, draws):
        self.model, self.draws = model.stochastic(), draws

    def sample(self, x):
        return torch.stack([self.model(x).softmax(-1) for _ in range(self.draws)])

    @torch.inference_mode()
    def assess(self, x):
        p = self.sample(x)
        mean = p.mean(0)
        total = entropy(mean)
        return {
            "class": mean.argmax(-1).tolist(),
            "spread": p.std(0).amax(-1).tolist(),
            "information": (total - entropy(p).mean(0)).tolist(),
        }


class HeadTriage(Triage):
    def sample(self, x):
        f = self.model.backbone(x)
        return torch.stack([self.model.head(f).softmax(-1) for _ in range(self.draws)])


def serve(triage, seconds, threshold=0.3):
    leaves = torch.rand(64, 3, 48, 48)
    took, referred = [], 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        t0 = time.perf_counter()
        x = leaves[torch.randint(0, 64, (3,))]
        verdict = triage.assess((x - 0.5) / 0.25)
        referred += sum(s > threshold for s in verdict["spread"])
        took.append(time.perf_counter() - t0)
    print(f"{len(took)} requests, {referred} leaves referred to the agronomist")
    return took


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--seconds", type=float, default=10)
    cli.add_argument("--times")
    cli.add_argument("--better", action="store_true")
    cli.add_argument("--draws", type=int, default=12)
    o = cli.parse_args()
    torch.manual_seed(0)
    took = serve((HeadTriage if o.better else Triage)(LeafModel(), o.draws), o.seconds)
    if o.times:
        json.dump(took, open(o.times, "w"))
