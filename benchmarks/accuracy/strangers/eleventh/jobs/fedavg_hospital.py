"""Federated averaging over hospital sites (simulated on one box)."""

import argparse
import copy
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Records(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitems__(self, indices):
        return self.x[indices], self.y[indices]


def as_is(batch):
    return batch


def hospital_records(site, patients, features, generator):
    """Vitals and lab values of a site, with a site-specific shift."""
    shift = 0.3 * torch.randn(features, generator=generator)
    x = torch.randn(patients, features, generator=generator) + shift
    risk = x[:, :6].sum(1) - 0.5 * x[:, 6:9].prod(1)
    y = (risk + torch.randn(patients, generator=generator) > 0.5).float()
    return Records(x, y)


class RiskNet(nn.Module):
    def __init__(self, features, hidden=320):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(features, hidden),
            nn.GELU(),
            nn.LayerNorm(hidden),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


class Site:
    def __init__(self, name, records, args):
        self.name = name
        self.records = records
        self.args = args

    def loader(self):
        workers = 0 if self.args.better else self.args.workers
        return DataLoader(self.records, batch_size=self.args.batch, shuffle=True, num_workers=workers, collate_fn=as_is)

    def fit(self, global_model):
        model = copy.deepcopy(global_model)
        opt = torch.optim.SGD(model.parameters(), lr=self.args.lr, momentum=0.9)
        total, seen = 0.0, 0
        for _ in range(self.args.local_epochs):
            for x, y in self.loader():
                loss = F.binary_cross_entropy_with_logits(model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                total += loss.item() * len(y)
                seen += len(y)
        return model.state_dict(), len(self.records), total / seen


class Server:
    def __init__(self, model):
        self.model = model
        self.updates = []

    def receive(self, state, weight):
        self.updates.append((state, weight))

    def aggregate(self):
        total = sum(w for _, w in self.updates)
        with torch.no_grad():
            for name, value in self.model.state_dict().items():
                value.copy_(sum(s[name] * (w / total) for s, w in self.updates))
        self.updates.clear()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    parser.add_argument("--seconds", type=float, default=16)
    parser.add_argument("--sites", type=int, default=12)
    parser.add_argument("--patients", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--local-epochs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.02)
    args = parser.parse_args()

    torch.manual_seed(42)
    g = torch.Generator().manual_seed(42)
    sites = [Site(f"hospital-{i}", hospital_records(i, args.patients, 40, g), args) for i in range(args.sites)]
    server = Server(RiskNet(40))

    times, rounds = [], 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        losses = []
        for site in sites:
            t0 = time.perf_counter()
            state, weight, loss = site.fit(server.model)
            server.receive(state, weight)
            losses.append(loss)
            times.append(time.perf_counter() - t0)
            if time.perf_counter() - begin > args.seconds:
                break
        server.aggregate()
        print(f"round {rounds}: loss {sum(losses) / len(losses):.4f} from {len(losses)} sites")
        rounds += 1

    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
