"""Federated averaging over clinics; every round trains a few of them locally."""

import argparse, copy, json, random, time
import torch
from torch import nn


def make_model():
    return nn.Sequential(nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 5))


class Clinic:
    def __init__(self, ident, rows=6000):
        g = torch.Generator().manual_seed(ident)
        self.ident = ident
        self.x = torch.randn(rows, 1024, generator=g)
        shift = 0.3 * torch.randn(5, generator=g)
        self.y = (self.x[:, :5] + shift).argmax(1)
        self.model = make_model()

    def load(self, weights):
        self.model.load_state_dict(weights)

    def train(self, steps, batch=64, lr=0.05):
        opt = torch.optim.SGD(self.model.parameters(), lr)
        total = 0.0
        for _ in range(steps):
            rows = torch.randint(len(self.x), (batch,))
            loss = nn.functional.cross_entropy(self.model(self.x[rows]), self.y[rows])
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        return total / steps


class Server:
    def __init__(self, clinics, isolate):
        self.clinics, self.isolate = clinics, isolate
        self.weights = make_model().state_dict()

    def round(self, per_round=3, steps=10):
        chosen = random.sample(self.clinics, per_round)
        updates, losses = [], []
        for clinic in chosen:
            worker = self.isolate(clinic)
            worker.load(self.weights)
            losses.append(worker.train(steps))
            updates.append(worker.model.state_dict())
        self.weights = {k: torch.stack([u[k] for u in updates]).mean(0) for k in self.weights}
        return sum(losses) / len(losses)


def separate_clinic(clinic):
    return copy.deepcopy(clinic)


def separate_model(clinic):
    worker = copy.copy(clinic)
    worker.model = copy.deepcopy(clinic.model)
    return worker


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--clinics", type=int, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=14)
    args = ap.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    server = Server([Clinic(i) for i in range(args.clinics)], separate_model if args.better else separate_clinic)
    times = []
    start = last = time.perf_counter()
    while last - start < args.seconds:
        loss = server.round()
        if len(times) % 20 == 0:
            print(f"round {len(times)} mean local loss {loss:.4f}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
