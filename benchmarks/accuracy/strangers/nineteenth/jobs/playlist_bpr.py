"""Playlist recommendation: two small towers trained with BPR on listened tracks against tracks never listened to."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class PlayLog:
    def __init__(self, users=3000, tracks=3000, mean_plays=40, seed=0):
        rng = np.random.default_rng(seed)
        self.num_users, self.num_tracks = users, tracks
        self.history = [np.unique(rng.integers(0, tracks, rng.integers(10, 2 * mean_plays))) for _ in range(users)]
        self.pairs = np.concatenate([np.stack([np.full(len(h), u), h], 1) for u, h in enumerate(self.history)])
        self.tags = torch.from_numpy(rng.standard_normal((tracks, 48)).astype(np.float32))


class TripletSet(Dataset):
    def __init__(self, log, negatives=4):
        self.log = log
        self.negatives = negatives
        self.rng = np.random.default_rng(7)
        self.all_tracks = np.arange(log.num_tracks)

    def __len__(self):
        return len(self.log.pairs)

    def draw_negatives(self, user):
        unseen = np.setdiff1d(self.all_tracks, self.log.history[user])
        return self.rng.choice(unseen, self.negatives)

    def __getitem__(self, i):
        user, track = self.log.pairs[i]
        return int(user), int(track), self.draw_negatives(user)


class RejectingTripletSet(TripletSet):
    def __init__(self, log, negatives=4):
        super().__init__(log, negatives)
        self.seen = [set(h.tolist()) for h in log.history]

    def draw_negatives(self, user):
        seen, out = self.seen[user], []
        while len(out) < self.negatives:
            out += [t for t in self.rng.integers(0, self.log.num_tracks, self.negatives).tolist() if t not in seen]
        return np.array(out[: self.negatives])


def collate(rows):
    users, tracks, negs = zip(*rows)
    return torch.tensor(users), torch.tensor(tracks), torch.from_numpy(np.stack(negs))


class TwoTower(nn.Module):
    def __init__(self, log, dim=32):
        super().__init__()
        self.user = nn.Embedding(log.num_users, dim)
        self.track = nn.Embedding(log.num_tracks, dim)
        self.register_buffer("tags", log.tags)
        self.user_mlp = nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Linear(128, 64))
        self.track_mlp = nn.Sequential(nn.Linear(dim + log.tags.shape[1], 128), nn.ReLU(), nn.Linear(128, 64))

    def embed_tracks(self, idx):
        return self.track_mlp(torch.cat([self.track(idx), self.tags[idx]], -1))

    def forward(self, users, tracks, negs):
        u = self.user_mlp(self.user(users))
        both = self.embed_tracks(torch.cat([tracks[:, None], negs], 1))
        scores = (u[:, None] * both).sum(-1)
        return scores[:, :1], scores[:, 1:]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)

    log = PlayLog()
    data = (RejectingTripletSet if args.better else TripletSet)(log)
    loader = DataLoader(data, batch_size=192, shuffle=True, drop_last=True, collate_fn=collate)
    model = TwoTower(log)
    opt = torch.optim.Adagrad(model.parameters(), lr=0.05)

    times, step, right = [], 0, 0.0
    start = last = time.perf_counter()
    while last - start < args.seconds:
        for users, tracks, negs in loader:
            pos, neg = model(users, tracks, negs)
            loss = -F.logsigmoid(pos - neg).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            right += (pos > neg).float().mean().item()
            step += 1
            if step % 50 == 0:
                print(f"step {step} bpr {loss.item():.4f} pair accuracy {right / 50:.3f}", flush=True)
                right = 0.0
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if now - start >= args.seconds:
                break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
