"""Train the courier ETA regressor on the export of the dispatch system."""

import argparse
import json
import math
import random
import time
from datetime import datetime, timedelta

import torch
from torch import nn
import torch.nn.functional as F

CITIES = ["ams", "rtm", "utr", "ein", "grq", "mst", "haa", "ley"]
FMT = "%Y-%m-%dT%H:%M:%S"


def make_export(n, seed=3):
    rng = random.Random(seed)
    base = datetime(2024, 1, 1)
    out = []
    for _ in range(n):
        placed = base + timedelta(seconds=rng.randrange(0, 180 * 86400))
        picked = placed + timedelta(seconds=rng.randrange(60, 2400))
        dist = rng.expovariate(1 / 3.0) + 0.2
        rec = {
            "city": rng.choice(CITIES),
            "placed_at": placed.strftime(FMT),
            "picked_at": picked.strftime(FMT),
            "from": {"lat": 52 + rng.random(), "lon": 4 + rng.random()},
            "to": {"lat": 52 + rng.random(), "lon": 4 + rng.random()},
            "km": round(dist, 3),
            "items": rng.randrange(1, 12),
            "eta_min": 4 + dist * 3.2 + rng.random() * 5,
        }
        out.append(json.dumps(rec))
    return out


def haversine(a, b):
    la1, lo1, la2, lo2 = map(math.radians, (a["lat"], a["lon"], b["lat"], b["lon"]))
    h = math.sin((la2 - la1) / 2) ** 2 + math.cos(la1) * math.cos(la2) * math.sin((lo2 - lo1) / 2) ** 2
    return 12742 * math.asin(math.sqrt(h))


def to_row(line):
    r = json.loads(line)
    placed = datetime.strptime(r["placed_at"], FMT)
    picked = datetime.strptime(r["picked_at"], FMT)
    city = [0.0] * len(CITIES)
    city[CITIES.index(r["city"])] = 1.0
    day = (placed.hour * 60 + placed.minute) / 1440
    return city + [
        math.sin(2 * math.pi * day),
        math.cos(2 * math.pi * day),
        float(placed.weekday()) / 6,
        (picked - placed).total_seconds() / 600,
        haversine(r["from"], r["to"]) / 100,
        r["km"],
        r["items"] / 10,
        r["eta_min"],
    ]


class Source:
    def __init__(self, lines, ready):
        self.lines = lines
        self.table = torch.tensor([to_row(l) for l in lines]) if ready else None

    def batches(self, size):
        order = torch.randperm(len(self.lines))
        for chunk in order.split(size):
            if self.table is not None:
                t = self.table[chunk]
            else:
                t = torch.tensor([to_row(self.lines[i]) for i in chunk.tolist()])
            yield t[:, :-1], t[:, -1]


def build(n_in):
    layers = []
    width = [n_in, 384, 384, 384]
    for a, b in zip(width, width[1:]):
        layers += [nn.Linear(a, b), nn.LayerNorm(b), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width[-1], 1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    a = ap.parse_args()

    torch.manual_seed(0)
    src = Source(make_export(24_000), ready=a.better)
    net = build(len(CITIES) + 7)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)

    times, epoch = [], 0
    start = prev = time.perf_counter()
    while prev - start < a.seconds:
        for x, y in src.batches(512):
            loss = F.smooth_l1_loss(net(x).squeeze(1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            now = time.perf_counter()
            times.append(now - prev)
            prev = now
            if now - start >= a.seconds:
                break
        epoch += 1
        print(f"epoch {epoch} loss {loss.item():.3f} steps {len(times)}")

    if a.times:
        with open(a.times, "w") as fh:
            json.dump(times, fh)


if __name__ == "__main__":
    main()
