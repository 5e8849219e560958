"""Home feed ranking: user tower, item tower, small cross model on the best 1500."""

import argparse, json, time
import torch
import torch.nn as nn
import torch.nn.functional as F

N_ITEMS = 6000
D = 64


class ItemTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.cat = nn.Embedding(300, 32)
        self.brand = nn.Embedding(900, 32)
        self.mlp = nn.Sequential(nn.Linear(64 + 16, 128), nn.ReLU(), nn.Linear(128, D))

    def forward(self, cat, brand, dense):
        h = torch.cat([self.cat(cat), self.brand(brand), dense], 1)
        return F.normalize(self.mlp(h), dim=1)


class UserTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(N_ITEMS, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 2)
        self.out = nn.Linear(64, D)

    def forward(self, hist):
        return F.normalize(self.out(self.enc(self.item(hist)).mean(1)), dim=1)


class Cross(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3 * D, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, u, v):
        u = u.expand_as(v)
        return self.net(torch.cat([u, v, u * v], 1)).squeeze(1)


class Catalogue:
    def __init__(self):
        self.cat = torch.randint(0, 300, (N_ITEMS,))
        self.brand = torch.randint(0, 900, (N_ITEMS,))
        self.dense = torch.randn(N_ITEMS, 16)
        self.stock = torch.rand(N_ITEMS) > 0.1

    def features(self):
        return self.cat, self.brand, self.dense


class Ranker:
    def __init__(self, ahead):
        self.items, self.users, self.cross = ItemTower().eval(), UserTower().eval(), Cross().eval()
        self.catalogue = Catalogue()
        self.table = None
        if ahead:
            with torch.inference_mode():
                self.table = self.items(*self.catalogue.features())

    def item_vectors(self):
        if self.table is not None:
            return self.table
        return self.items(*self.catalogue.features())

    @torch.inference_mode()
    def feed(self, hist, k=20):
        u = self.users(hist)
        vecs = self.item_vectors()
        score = (vecs @ u.T).squeeze(1).masked_fill(~self.catalogue.stock, -9.0)
        short = score.topk(1500).indices
        fine = self.cross(u, vecs[short])
        return short[fine.topk(k).indices].tolist()


parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=12)
parser.add_argument("--better", action="store_true")
parser.add_argument("--times")
ns = parser.parse_args()

torch.manual_seed(0)
ranker = Ranker(ns.better)
lat = []
shown = torch.zeros(N_ITEMS, dtype=torch.long)
t_begin = time.perf_counter()
while time.perf_counter() - t_begin < ns.seconds:
    histories = torch.randint(0, N_ITEMS, (1, 100))
    t = time.perf_counter()
    page = ranker.feed(histories)
    lat.append(time.perf_counter() - t)
    shown[page] += 1
    if len(lat) % 100 == 0:
        print("requests", len(lat), "distinct items", int((shown > 0).sum()))

print("mean ms", round(1e3 * sum(lat) / len(lat), 2))
if ns.times:
    json.dump(lat, open(ns.times, "w"))
