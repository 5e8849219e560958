"""Federated averaging of a next-letter model over many simulated phones."""

import argparse
import copy
import io
import random
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

LETTERS = "abcdefghijklmnopqrstuvwxyz _"
CONTEXT = 12


class NextLetter(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(len(LETTERS), 32)
        self.h1 = nn.Linear(32 * CONTEXT, 768)
        self.h2 = nn.Linear(768, 768)
        self.out = nn.Linear(768, len(LETTERS))

    def forward(self, x):
        z = self.emb(x).flatten(1)
        return self.out(F.relu(self.h2(F.relu(self.h1(z)))))


class Phone:
    """Holds private text."""

    def __init__(self, number):
        r = random.Random(number)
        words = ["".join(r.choices(LETTERS[:26], k=r.randint(2, 6))) for _ in range(12)]
        text = " ".join(r.choice(words) for _ in range(150))
        ids = torch.tensor([LETTERS.index(c) for c in text])
        win = ids.unfold(0, CONTEXT + 1, 1)
        self.x, self.y = win[:, :-1].contiguous(), win[:, -1].contiguous()

    def __len__(self):
        return len(self.y)

    def local_update(self, model, lr=0.1, rounds=1, batch=64):
        opt = torch.optim.SGD(model.parameters(), lr=lr)
        for _ in range(rounds):
            pick = torch.randperm(len(self))[:batch]
            loss = F.cross_entropy(model(self.x[pick]), self.y[pick])
            opt.zero_grad()
            loss.backward()
            opt.step()
        return loss.item()


class Server:
    def __init__(self, better):
        self.model = NextLetter()
        self.better = better
        self.worker = copy.deepcopy(self.model)

    def ship(self):
        """The model as the phone gets it."""
        if self.better:
            self.worker.load_state_dict(self.model.state_dict())
            return self.worker
        buf = io.BytesIO()
        torch.save(self.model, buf)
        buf.seek(0)
        return torch.load(buf, weights_only=False)

    def receive(self, model):
        if self.better:
            return model.state_dict()
        buf = io.BytesIO()
        torch.save(model.state_dict(), buf)
        buf.seek(0)
        return torch.load(buf)

    def round(self, cohort):
        total = sum(map(len, cohort))
        mean, losses = None, []
        for phone in cohort:
            local = self.ship()
            losses.append(phone.local_update(local))
            state = self.receive(local)
            share = len(phone) / total
            if mean is None:
                mean = {k: v * share for k, v in state.items()}
            else:
                for k, v in state.items():
                    mean[k].add_(v, alpha=share)
        self.model.load_state_dict(mean)
        return statistics.mean(losses)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    a = ap.parse_args()
    torch.manual_seed(6)
    random.seed(6)
    phones = [Phone(k) for k in range(120)]
    server = Server(a.better)
    spent = []
    end = time.perf_counter() + a.seconds
    while time.perf_counter() < end:
        t = time.perf_counter()
        loss = server.round(random.sample(phones, 6))
        spent.append(time.perf_counter() - t)
        if len(spent) % 20 == 0:
            print(f"round {len(spent)}: mean local loss {loss:.4f}", flush=True)
    if a.times:
        with open(a.times, "w") as f:
            f.write("\n".join(f"{v:.6f}" for v in spent) + "\n")


if __name__ == "__main__":
    main()
