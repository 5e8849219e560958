"""Two-tower retrieval behind a request loop: every request is a handful of users wanting 20 items."""

import argparse, json, queue, threading, time
import numpy as np
import torch
import torch.nn as nn

N_ITEMS, N_USERS = 12000, 50000


class Tower(nn.Module):
    def __init__(self, n_ids, n_feat, dim=64, hidden=256):
        super().__init__()
        self.emb = nn.Embedding(n_ids, dim)
        self.net = nn.Sequential(
            nn.Linear(dim + n_feat, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, dim)
        )

    def forward(self, ids, feats):
        h = self.net(torch.cat([self.emb(ids), feats], dim=-1))
        return nn.functional.normalize(h, dim=-1)


class Recommender:
    def __init__(self, frozen_index=False):
        self.users = Tower(N_USERS, 16).eval()
        self.items = Tower(N_ITEMS, 32).eval()
        self.item_feats = torch.randn(N_ITEMS, 32)
        self.item_ids = torch.arange(N_ITEMS)
        self._index = self.item_vectors() if frozen_index else None

    @torch.inference_mode()
    def item_vectors(self):
        return torch.cat([self.items(i, f) for i, f in zip(self.item_ids.split(2000), self.item_feats.split(2000))])

    @property
    def catalogue(self):
        return self._index if self._index is not None else self.item_vectors()

    @torch.inference_mode()
    def recommend(self, user_ids, feats, seen, k=20):
        u = self.users(user_ids, feats)
        scores = u @ self.catalogue.T
        scores.scatter_(1, seen, -2.0)
        top = scores.topk(k, dim=1)
        return top.indices.tolist(), top.values.tolist()


def client(q, stop, rng):
    """Keeps a few requests outstanding, as the gateway in front of the service does."""
    while not stop.is_set():
        n = 48
        req = dict(
            users=rng.integers(0, N_USERS, n),
            feats=rng.standard_normal((n, 16), dtype=np.float32),
            seen=rng.integers(0, N_ITEMS, (n, 30)),
        )
        while not stop.is_set():
            try:
                q.put(req, timeout=0.5)
                break
            except queue.Full:
                pass


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6.0)
    ap.add_argument("--times", default=None)
    ap.add_argument("--better", action="store_true")
    a = ap.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    rec = Recommender(frozen_index=a.better)
    q, stop = queue.Queue(maxsize=8), threading.Event()
    th = threading.Thread(target=client, args=(q, stop, np.random.default_rng(0)), daemon=True)
    th.start()
    durations, served = [], 0
    t_start = t0 = time.perf_counter()
    while t0 - t_start < a.seconds or len(durations) < 24:
        r = q.get()
        ids, vals = rec.recommend(
            torch.from_numpy(r["users"]), torch.from_numpy(r["feats"]), torch.from_numpy(r["seen"])
        )
        response = json.dumps([{"items": i, "scores": [round(x, 4) for x in v]} for i, v in zip(ids, vals)])
        served += len(response)
        t1 = time.perf_counter()
        durations.append(t1 - t0)
        t0 = t1
    stop.set()
    th.join()
    print(f"{len(durations)} requests, {served / 1e6:.1f} MB of answers, p50 {np.median(durations) * 1e3:.1f} ms")
    if a.times:
        with open(a.times, "w") as f:
            json.dump(durations, f)


if __name__ == "__main__":
    main()
