"""Multimodal sentiment: text, audio and video joined by a factorised trilinear pooling."""

import argparse
import dataclasses
import json
import sys
import time

import torch
from torch import Tensor, nn


@dataclasses.dataclass
class Config:
    text: int = 300
    audio: int = 74
    video: int = 64
    rank: int = 48
    out: int = 64
    batch: int = 64
    lr: float = 1e-3


class FactorisedPooling(nn.Module):
    """out[b,o] = sum_r (t.T)[b,r] (a.A)[b,r] (v.V)[b,r] W[r,o]"""

    def __init__(self, cfg: Config):
        super().__init__()
        self.t = nn.Parameter(torch.randn(cfg.text, cfg.rank) / cfg.text**0.5)
        self.a = nn.Parameter(torch.randn(cfg.audio, cfg.rank) / cfg.audio**0.5)
        self.v = nn.Parameter(torch.randn(cfg.video, cfg.rank) / cfg.video**0.5)
        self.w = nn.Parameter(torch.randn(cfg.rank, cfg.out) / cfg.rank**0.5)

    def forward(self, text: Tensor, audio: Tensor, video: Tensor) -> Tensor:
        ta = torch.einsum("bi,bj,ir,jr->br", text, audio, self.t, self.a)
        return torch.einsum("br,bk,kr,ro->bo", ta, video, self.v, self.w)


class FactorisedPoolingByRank(FactorisedPooling):
    def forward(self, text: Tensor, audio: Tensor, video: Tensor) -> Tensor:
        return ((text @ self.t) * (audio @ self.a) * (video @ self.v)) @ self.w


class Regressor(nn.Module):
    def __init__(self, cfg: Config, pooling: nn.Module):
        super().__init__()
        self.lift = nn.ModuleDict(
            {
                "text": nn.GRU(cfg.text, cfg.text, batch_first=True),
                "audio": nn.GRU(cfg.audio, cfg.audio, batch_first=True),
                "video": nn.GRU(cfg.video, cfg.video, batch_first=True),
            }
        )
        self.pool = pooling
        self.head = nn.Sequential(nn.LayerNorm(cfg.out), nn.ReLU(), nn.Linear(cfg.out, 1))

    def forward(self, sample: dict) -> Tensor:
        last = {k: net(sample[k])[1][-1] for k, net in self.lift.items()}
        return self.head(self.pool(last["text"], last["audio"], last["video"])).squeeze(-1)


def batches(cfg: Config, length: int = 6):
    g = torch.Generator().manual_seed(11)
    n = 1500
    bank = {k: torch.randn(n, length, getattr(cfg, k), generator=g) for k in ("text", "audio", "video")}
    score = torch.rand(n, generator=g) * 6 - 3
    while True:
        for rows in torch.randperm(n, generator=g).split(cfg.batch):
            if len(rows) == cfg.batch:
                yield {k: v[rows] for k, v in bank.items()}, score[rows]


def train(cfg: Config, pooling: nn.Module, seconds: float) -> list:
    model = Regressor(cfg, pooling)
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    feed = batches(cfg)
    times, t_end = [], time.perf_counter() + seconds
    while time.perf_counter() < t_end:
        t0 = time.perf_counter()
        sample, score = next(feed)
        loss = nn.functional.l1_loss(model(sample), score)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        times.append(time.perf_counter() - t0)
        if len(times) % 40 == 1:
            print(f"[{len(times):4d}] mae={loss.item():.3f}", file=sys.stderr)
    return times


def main(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=10.0)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    a = p.parse_args(argv)
    torch.manual_seed(0)
    cfg = Config()
    pooling = FactorisedPoolingByRank(cfg) if a.better else FactorisedPooling(cfg)
    times = train(cfg, pooling, a.seconds)
    if a.times:
        with open(a.times, "w") as fh:
            json.dump(times, fh)


if __name__ == "__main__":
    main()
