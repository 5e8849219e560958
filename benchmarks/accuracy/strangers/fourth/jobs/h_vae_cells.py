"""VAE for single-cell expression profiles (counts -> log1p), in the style of scVI but Gaussian."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

GENES = 1200


class VAE(nn.Module):
    def __init__(self, latent=16, width=384):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(GENES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.mu, self.logvar = nn.Linear(width, latent), nn.Linear(width, latent)
        self.dec = nn.Sequential(nn.Linear(latent, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.out = nn.Linear(width, GENES)

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return self.out(self.dec(z)), mu, logvar


def elbo(x, rec, mu, logvar, beta):
    nll = F.mse_loss(rec, x, reduction="sum") / len(x)
    kl = -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum() / len(x)
    return nll + beta * kl, nll, kl


class AverageMeter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, v):
        self.total += v
        self.count += 1

    @property
    def avg(self):
        return self.total / max(1, self.count)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    args = p.parse_args()

    torch.manual_seed(0)
    counts = torch.poisson(torch.rand(6000, 12) @ torch.rand(12, GENES))
    cells = torch.log1p(counts)
    train, test = cells[:5500], cells[5500:]
    model = VAE()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    times, done, epoch = [], False, 0
    begin = time.perf_counter()
    while not done:
        meters = [AverageMeter() for _ in range(3)]
        for ix in torch.randperm(len(train)).split(256):
            t0 = time.perf_counter()
            x = train[ix]
            beta = min(1.0, len(times) / 500)
            parts = elbo(x, *model(x), beta)
            opt.zero_grad()
            parts[0].backward()
            opt.step()
            for m, v in zip(meters, parts):
                m.update(v.item())
            times.append(time.perf_counter() - t0)
            if time.perf_counter() - begin > args.seconds:
                done = True
                break
        epoch += 1
        print(f"epoch {epoch}: loss {meters[0].avg:.2f} nll {meters[1].avg:.2f} kl {meters[2].avg:.3f}")

    model.eval()
    with torch.no_grad():
        rec, mu, logvar = model(test)
        print("held-out nll %.2f" % elbo(test, rec, mu, logvar, 1.0)[1].item())
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
