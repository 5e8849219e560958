"""Prototypical network on made-up spectra, episodic training."""

import argparse, json, time
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Episodes(IterableDataset):
    def __init__(self, spectra, n_way=10, shot=5, query=10, per_epoch=12):
        self.spectra = spectra
        self.n_way, self.shot, self.query = n_way, shot, query
        self.per_epoch = per_epoch

    def __len__(self):
        return self.per_epoch

    def __iter__(self):
        rng = np.random.default_rng(torch.initial_seed() % 2**32)
        n_class, n_each, _ = self.spectra.shape
        for _ in range(self.per_epoch):
            cls = rng.choice(n_class, self.n_way, replace=False)
            idx = rng.permuted(np.tile(np.arange(n_each), (self.n_way, 1)), axis=1)[:, : self.shot + self.query]
            x = self.spectra[cls[:, None], idx]
            x = x + 0.05 * rng.standard_normal(x.shape, dtype=np.float32)
            yield torch.from_numpy(x)


class Encoder(nn.Module):
    def __init__(self, bins=400, dim=64, hidden=384):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(bins, hidden),
            nn.LayerNorm(hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.LayerNorm(hidden),
            nn.GELU(),
            nn.Linear(hidden, dim),
        )

    def forward(self, x):
        return self.net(x)


class ProtoTrainer:
    def __init__(self, loader, seconds):
        self.loader = loader
        self.seconds = seconds
        self.net = Encoder()
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=1e-3, fused=True)
        self.times = []

    def episode_loss(self, x):
        way, per, bins = x.shape
        z = self.net(x.reshape(-1, bins)).view(way, per, -1)
        shot = self.loader.dataset.shot
        proto = z[:, :shot].mean(1)
        q = z[:, shot:].reshape(-1, z.size(-1))
        logits = -torch.cdist(q, proto).square()
        target = torch.arange(way).repeat_interleave(per - shot)
        return F.cross_entropy(logits, target), logits, target

    def fit(self):
        begin = last = time.perf_counter()
        epoch = 0
        while True:
            hits, total = torch.zeros(()), 0
            for x in self.loader:
                loss, logits, target = self.episode_loss(x)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                hits += (logits.argmax(1) == target).sum()
                total += len(target)
                now = time.perf_counter()
                self.times.append(now - last)
                last = now
                if now - begin > self.seconds:
                    return
            epoch += 1
            if epoch % 10 == 0:
                print(f"epoch {epoch} acc {(hits / total).item():.3f}")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12.0)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times", default=None)
    a = p.parse_args()
    torch.manual_seed(1)
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((60, 1, 400)).astype(np.float32)
    spectra = centers + 0.8 * rng.standard_normal((60, 40, 400)).astype(np.float32)
    loader = DataLoader(Episodes(spectra), batch_size=None, num_workers=1, persistent_workers=a.better)
    trainer = ProtoTrainer(loader, a.seconds)
    trainer.fit()
    if a.times:
        json.dump(trainer.times, open(a.times, "w"))
