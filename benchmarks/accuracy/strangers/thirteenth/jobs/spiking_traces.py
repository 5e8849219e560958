"""Spiking layer with spike-timing traces (pair-based STDP, batch of trials).

Inputs are bursts: a channel fires for a short window, later stays silent.
"""

import argparse
import time
from dataclasses import dataclass, field

import torch


@dataclass
class Params:
    trials: int = 64
    n_in: int = 1600
    n_out: int = 384
    decay_pre: float = 0.90
    decay_post: float = 0.92
    leak: float = 0.95
    threshold: float = 1.0
    lr: float = 1e-4
    ticks_per_step: int = 4
    trial_ticks: int = 400


@dataclass
class State:
    w: torch.Tensor
    pre: torch.Tensor
    post: torch.Tensor
    v: torch.Tensor
    clock: int = 0
    raster: torch.Tensor | None = None
    parts: list = field(default_factory=list)
    rates: list = field(default_factory=list)


def fresh_state(p: Params) -> State:
    g = torch.Generator().manual_seed(5)
    return State(
        w=torch.rand(p.n_in, p.n_out, generator=g) * 0.01,
        pre=torch.zeros(p.trials, p.n_in),
        post=torch.zeros(p.trials, p.n_out),
        v=torch.zeros(p.trials, p.n_out),
    )


def bursts(p: Params, clock: int) -> torch.Tensor:
    """Spikes of the channels whose window is now; the first 200 ticks stimulate all."""
    spikes = torch.zeros(p.trials, p.n_in)
    if clock < 200:
        spikes = (torch.rand(p.trials, p.n_in) < 0.05).float()
    else:
        lo = 0
        spikes[:, lo : lo + 160] = (torch.rand(p.trials, 160) < 0.2).float()
    return spikes


def tick(p: Params, s: State, learn: bool = True) -> torch.Tensor:
    x = bursts(p, s.clock)
    s.pre.mul_(p.decay_pre).add_(x)
    s.v.mul_(p.leak).add_(x @ s.w)
    fired = (s.v > p.threshold).float()
    s.v.mul_(1 - fired)
    s.post.mul_(p.decay_post).add_(fired)
    if learn:
        potentiate = s.pre.t() @ fired
        depress = x.t() @ s.post
        s.w.add_(potentiate - 0.5 * depress, alpha=p.lr / p.trials).clamp_(0, 0.02)
    s.clock += 1
    return fired


def record(p: Params, s: State, fired: torch.Tensor, better: bool) -> None:
    """Keep the spike raster of the current trial; at its end only statistics stay."""
    if better:
        s.parts.append(fired)
        n = len(s.parts)
    else:
        s.raster = fired[None] if s.raster is None else torch.cat([s.raster, fired[None]])
        n = len(s.raster)
    if n == p.trial_ticks:
        raster = torch.stack(s.parts) if better else s.raster
        isi = (raster.sum((0, 1)) / p.trial_ticks).sort().values
        print(f"trial over: median rate {isi[len(isi) // 2].item():.4f} top {isi[-1].item():.4f}")
        s.raster, s.parts = None, []


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times", default="")
    a = ap.parse_args()
    torch.manual_seed(0)
    p = Params()
    s = fresh_state(p)
    for _ in range(1300):  # settle without plasticity
        x = bursts(p, s.clock)
        s.pre.mul_(p.decay_pre).add_(x)
        s.clock += 1

    took = []
    end = time.monotonic() + a.seconds
    while time.monotonic() < end:
        t = time.perf_counter()
        for _ in range(p.ticks_per_step):
            record(p, s, tick(p, s), a.better)
        s.rates.append(float(s.post.mean()))
        if len(took) % 50 == 0:
            print(f"tick {s.clock} mean post trace {s.rates[-1]:.4f} mean w {s.w.mean().item():.5f}")
        took.append(time.perf_counter() - t)

    if a.times:
        with open(a.times, "w") as fh:
            for v in took:
                print(v, file=fh)


if __name__ == "__main__":
    main()
