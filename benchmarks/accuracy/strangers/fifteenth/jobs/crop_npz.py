"""Super-resolution of gridded surface fields. One archive per station year, coarse field in, fine field out."""

import argparse, json, os, shutil, tempfile, time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=20)
parser.add_argument("--times")
parser.add_argument("--better", action="store_true")
parser.add_argument("--batch", type=int, default=8)
args = parser.parse_args()


def write_years(folder, years=6, days=40, size=48):
    rng = np.random.default_rng(7)
    for y in range(years):
        fine = rng.normal(size=(days, size, size)).astype(np.float32).cumsum(1).cumsum(2) / 20
        coarse = fine[:, ::2, ::2].copy()
        np.savez_compressed(os.path.join(folder, f"y{y}.npz"), coarse=coarse, fine=fine)


class YearFields(Dataset):
    def __init__(self, folder, days=40):
        self.days = days
        self.archives = [np.load(os.path.join(folder, f)) for f in sorted(os.listdir(folder))]
        if args.better:
            self.archives = [{k: a[k] for k in a.files} for a in self.archives]

    def __len__(self):
        return len(self.archives) * self.days

    def __getitem__(self, i):
        year, day = divmod(i, self.days)
        arc = self.archives[year]
        coarse = torch.from_numpy(arc["coarse"][day])[None]
        fine = torch.from_numpy(arc["fine"][day])[None]
        return coarse, fine


class SRNet(nn.Module):
    def __init__(self, width=32, depth=4):
        super().__init__()
        layers = [nn.Conv2d(1, width, 5, padding=2), nn.ReLU()]
        for _ in range(depth):
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Conv2d(width, 4, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, x):
        return self.head(self.body(x)) + nn.functional.interpolate(x, scale_factor=2, mode="bilinear")


def main():
    torch.manual_seed(0)
    folder = tempfile.mkdtemp(prefix="fields_")
    try:
        write_years(folder)
        loader = DataLoader(YearFields(folder), batch_size=args.batch, shuffle=True, drop_last=True)
        model = SRNet().to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        times, begin = [], time.perf_counter()
        batches = iter(loader)
        while time.perf_counter() - begin < args.seconds:
            t0 = time.perf_counter()
            try:
                coarse, fine = next(batches)
            except StopIteration:
                batches = iter(loader)
                coarse, fine = next(batches)
            loss = nn.functional.l1_loss(model(coarse), fine)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            times.append(time.perf_counter() - t0)
        print("final l1", loss.item(), "steps", len(times))
    finally:
        shutil.rmtree(folder)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
