# Monte Carlo pricing of an arithmetic Asian option book under a local-vol surface (small net),
# a new draw of paths for each bumped spot. One "step" = one pricing run of the book.
import argparse, json, math, time
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Market:
    s0: float = 100.0
    rate: float = 0.03
    div: float = 0.01
    maturity: float = 1.0
    n_fix: int = 252
    n_paths: int = 4096


class LocalVol(nn.Module):
    """sigma(t, log-moneyness) as a low order surface."""

    def __init__(self):
        super().__init__()
        self.coef = nn.Parameter(torch.tensor([0.21, -0.08, 0.05, 0.02]), requires_grad=False)

    def forward(self, t, k):
        a, b, c, d = self.coef
        return torch.clamp(a + b * k + c * k * k + d * t, 0.05, 0.8)


class PathGenerator:
    def __init__(self, mkt, vol, inline=True):
        self.mkt = mkt
        self.vol = vol
        self.inline = inline

    def simulate(self, spot, z):
        m = self.mkt
        dt = m.maturity / m.n_fix
        sq = math.sqrt(dt)
        n = z.shape[1]
        s = spot.expand(n)
        if self.inline:
            paths = s.unsqueeze(0)
        else:
            rows = [s]
        logk = torch.log(s / m.s0)
        for i in range(m.n_fix):
            sig = self.vol(i * dt, logk)
            logk = logk + (m.rate - m.div - 0.5 * sig * sig) * dt + sig * sq * z[i]
            s = m.s0 * torch.exp(logk)
            if self.inline:
                paths = torch.cat([paths, s.unsqueeze(0)], dim=0)
            else:
                rows.append(s)
        return paths if self.inline else torch.stack(rows)


STRIKES = torch.tensor([85.0, 90, 95, 100, 105, 110, 115])


def payoff(paths, mkt):
    avg = paths[1:].mean(0)
    pay = torch.relu(avg[None, :] - STRIKES[:, None])
    return math.exp(-mkt.rate * mkt.maturity) * pay.mean(1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times", default="")
    a = p.parse_args()

    torch.manual_seed(7)
    mkt = Market()
    gen = PathGenerator(mkt, LocalVol(), inline=not a.better)
    prices, vars_ = [], []
    walls = []
    t_begin = time.perf_counter()
    k = 0
    while time.perf_counter() - t_begin < a.seconds:
        t = time.perf_counter()
        half = torch.randn(mkt.n_fix, mkt.n_paths // 2)
        z = torch.cat([half, -half], 1)
        with torch.no_grad():
            spot = torch.tensor([mkt.s0 * (1 + 0.002 * (k % 11 - 5))])
            paths = gen.simulate(spot, z)
            pv = payoff(paths, mkt)
            q = torch.quantile(paths[-1], torch.tensor([0.01, 0.05]))
        prices.append(pv)
        vars_.append(q)
        k += 1
        walls.append(time.perf_counter() - t)
        if k % 25 == 0:
            print("run", k, "ATM", round(float(pv[3]), 4), "q01", round(float(q[0]), 2))

    book = torch.stack(prices)
    print("mean", book.mean(0).tolist())
    print("stderr", (book.std(0) / math.sqrt(len(book))).tolist())
    if a.times:
        json.dump(walls, open(a.times, "w"))


if __name__ == "__main__":
    main()
