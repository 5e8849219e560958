"""ETA service for couriers.  The area around a depot is encoded by a convolutional net, the order by an MLP."""

import argparse
import functools
import json
import time

import torch
from torch import nn


class AreaEncoder(nn.Module):
    def __init__(self, channels=4, d=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(channels, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, d, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )

    def forward(self, tile):
        return self.net(tile[None])[0]


class EtaModel(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.area = AreaEncoder(d=d)
        self.order = nn.Sequential(nn.Linear(12, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, d))
        self.mix = nn.Sequential(nn.Linear(2 * d, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, area, orders):
        h = self.order(orders)
        return self.mix(torch.cat([h, area.expand(len(h), -1)], 1)).squeeze(1)


class MapStore:
    """Raster tiles (roads, speed, slope, zones) for each of the depots, kept as one byte per cell."""

    def __init__(self, depots=40, size=112):
        g = torch.Generator().manual_seed(2)
        self.raster = torch.randint(0, 255, (depots, 4, size, size), generator=g, dtype=torch.uint8)

    def tile(self, depot):
        return self.raster[depot].float() / 255


class Service:
    def __init__(self, by_depot=False):
        torch.manual_seed(0)
        self.maps = MapStore()
        self.model = EtaModel().eval()

        @functools.lru_cache(maxsize=256)
        def encode(tile):
            return self.model.area(tile)

        @functools.lru_cache(maxsize=256)
        def encode_depot(depot):
            return self.model.area(self.maps.tile(depot))

        self.context = encode_depot if by_depot else lambda depot: encode(self.maps.tile(depot))

    @torch.no_grad()
    def handle(self, depot, orders):
        return self.model(self.context(depot), orders)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--orders", type=int, default=640, help="open orders of a depot at a time")
    args = ap.parse_args()
    torch.set_num_threads(2)
    service = Service(args.better)
    g = torch.Generator().manual_seed(77)
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        depot = int(torch.randint(40, (), generator=g))
        orders = torch.randn(args.orders, 12, generator=g)
        t = time.perf_counter()
        minutes = service.handle(depot, orders)
        worst = minutes.max().item()
        times.append(time.perf_counter() - t)
    print(f"{len(times)} depots served, last worst {worst:.3f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
