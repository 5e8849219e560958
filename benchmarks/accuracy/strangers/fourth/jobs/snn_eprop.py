"""
Eligibility-trace learning (e-prop flavoured) in a layer of leaky integrate-and-fire neurons.
Each window of a recording gives one update of the input weights.
"""

import argparse
import json
import time

import torch


class LIFLayer:
    def __init__(self, n_in, n_out, batch, better, tau=0.6, theta=1.0):
        g = torch.Generator().manual_seed(5)
        self.w = torch.randn(n_in, n_out, generator=g) / n_in**0.5 * 3
        self.fb = torch.randn(10, n_out, generator=g) / n_out**0.5
        self.better = better
        self.tau = tau
        self.theta = theta
        self.v = torch.zeros(batch, n_out)
        self.pre = torch.zeros(batch, n_in)
        self.elig = torch.zeros(batch, n_in)

    def tick(self, spikes):
        self.pre.mul_(self.tau).add_(spikes)
        self.elig.lerp_(self.pre, 0.4)
        self.v.mul_(0.9).addmm_(spikes, self.w)
        out = (self.v > self.theta).float()
        self.v.sub_(out * self.theta)
        return out

    def learn(self, err, lr=1e-3):
        signal = err @ self.fb
        if self.better:
            dw = self.elig.t() @ signal
        else:
            dw = (self.elig.unsqueeze(2) * signal.unsqueeze(1)).sum(dim=0)
        self.w.add_(dw, alpha=-lr)


class Recordings:
    """Spike trains of `active` input lines, the others do not fire."""

    def __init__(self, batch, n_in, active=150):
        self.batch, self.n_in, self.active = batch, n_in, active
        self.g = torch.Generator().manual_seed(1)

    def window(self, ticks):
        s = torch.zeros(ticks, self.batch, self.n_in)
        s[:, :, : self.active] = (torch.rand(ticks, self.batch, self.active, generator=self.g) < 0.2).float()
        return s


def run(args):
    torch.manual_seed(0)
    batch, n_in, n_out, ticks = 32, 800, 256, 24
    layer = LIFLayer(n_in, n_out, batch, args.better)
    readout = torch.randn(n_out, 10) / n_out**0.5
    rec = Recordings(batch, n_in)
    labels = torch.nn.functional.one_hot(torch.randint(0, 10, (batch,)), 10).float()

    times = []
    t_begin = time.perf_counter()
    while time.perf_counter() - t_begin < args.seconds:
        t0 = time.perf_counter()
        rate = torch.zeros(batch, n_out)
        for spikes in rec.window(ticks):
            rate += layer.tick(spikes)
        err = torch.softmax(rate / ticks @ readout, dim=1) - labels
        layer.learn(err)
        readout.sub_(rate.t() @ err, alpha=1e-4)
        times.append(time.perf_counter() - t0)
        if len(times) % 50 == 0:
            print(f"window {len(times)}: mean |err| = {err.abs().mean():.4f}, rate = {rate.mean() / ticks:.3f}")
    return times


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    with torch.no_grad():
        t = run(args)
    if args.times:
        json.dump(t, open(args.times, "w"))
