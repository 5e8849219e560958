"""Variational autoencoder for single-cell expression counts."""

import argparse
import json
import pathlib
import tempfile
import time

import torch
import torch.nn.functional as F
from torch import nn

GENES = 1000


def expression(cells=6000, types=14, seed=0):
    g = torch.Generator().manual_seed(seed)
    profile = torch.randn(types, GENES, generator=g).mul(1.2).exp()
    profile /= profile.sum(1, keepdim=True)
    kind = torch.randint(types, (cells,), generator=g)
    depth = torch.empty(cells, 1).log_normal_(7.5, 0.4, generator=g)
    return torch.poisson(profile[kind] * depth, generator=g)


def mlp(*sizes):
    parts = []
    for a, b in zip(sizes, sizes[1:]):
        parts += [nn.Linear(a, b), nn.LayerNorm(b), nn.GELU()]
    return nn.Sequential(*parts)


class CellVAE(nn.Module):
    def __init__(self, hidden=256, latent=16):
        super().__init__()
        self.encoder = mlp(GENES, hidden, hidden)
        self.moments = nn.Linear(hidden, 2 * latent)
        self.decoder = mlp(latent, hidden, hidden)
        self.rate = nn.Linear(hidden, GENES)

    def forward(self, counts):
        mu, logvar = self.moments(self.encoder(torch.log1p(counts))).chunk(2, 1)
        logvar = logvar.clamp(-8, 6)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        log_p = F.log_softmax(self.rate(self.decoder(z)), 1)
        kl = 0.5 * (mu.square() + logvar.exp() - 1 - logvar).sum(1)
        return log_p, kl


class Recorder:
    """Appends one line per record: scalars, and the distribution of each weight and its gradient."""

    def __init__(self, path, every):
        self.file = open(path, "w")
        self.every = every

    @torch.no_grad()
    def spread(self, t, bins=32):
        low, high = t.aminmax()
        return {
            "low": low.item(),
            "high": high.item(),
            "std": t.std().item(),
            "hist": torch.histc(t, bins, low.item(), high.item()).tolist(),
        }

    def record(self, step, model, **scalars):
        if step % self.every:
            return
        row = {"step": step, **{k: v.item() for k, v in scalars.items()}}
        for name, p in model.named_parameters():
            row[name] = self.spread(p.detach())
            row[name + ".grad"] = self.spread(p.grad)
        self.file.write(json.dumps(row) + "\n")

    def close(self):
        self.file.close()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--batch", type=int, default=256)
    ap.add_argument("--run-dir", type=pathlib.Path, default=None)
    args = ap.parse_args()
    torch.manual_seed(0)
    folder = args.run_dir or pathlib.Path(tempfile.mkdtemp(prefix="cellvae"))

    counts = expression()
    model = CellVAE()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    recorder = Recorder(folder / "train.jsonl", every=100 if args.better else 1)
    times, step, epoch = [], 0, 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        for idx in torch.randperm(len(counts)).split(args.batch):
            t0 = time.perf_counter()
            x = counts[idx]
            log_p, kl = model(x)
            fit = -(x * log_p).sum(1) / x.sum(1)
            loss = fit.mean() + 1e-3 * min(1.0, step / 500) * kl.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.record(step, model, loss=loss.detach(), fit=fit.detach().mean(), kl=kl.detach().mean())
            step += 1
            times.append(time.perf_counter() - t0)
            if time.perf_counter() - begin > args.seconds:
                break
        epoch += 1
        if epoch % 4 == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
    recorder.close()
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
