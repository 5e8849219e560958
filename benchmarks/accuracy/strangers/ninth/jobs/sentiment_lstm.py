"""Re-implementation of a peephole-free LSTM classifier for the course project."""

import argparse
import json
import time
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    vocab: int = 8000
    emb: int = 128
    hidden: int = 192
    length: int = 60
    batch: int = 64
    lr: float = 1e-3
    clip: float = 5.0


class LSTMLayer(nn.Module):
    """Equations (1)-(6) of the paper."""

    def __init__(self, n_in, n_hid):
        super().__init__()
        self.n_hid = n_hid
        self.wi, self.ui = nn.Linear(n_in, n_hid), nn.Linear(n_hid, n_hid, bias=False)
        self.wf, self.uf = nn.Linear(n_in, n_hid), nn.Linear(n_hid, n_hid, bias=False)
        self.wo, self.uo = nn.Linear(n_in, n_hid), nn.Linear(n_hid, n_hid, bias=False)
        self.wc, self.uc = nn.Linear(n_in, n_hid), nn.Linear(n_hid, n_hid, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        h = x.new_zeros(b, self.n_hid)
        c = x.new_zeros(b, self.n_hid)
        outs = []
        for k in range(t):
            xt = x[:, k]
            i = torch.sigmoid(self.wi(xt) + self.ui(h))
            f = torch.sigmoid(self.wf(xt) + self.uf(h))
            o = torch.sigmoid(self.wo(xt) + self.uo(h))
            g = torch.tanh(self.wc(xt) + self.uc(h))
            c = f * c + i * g
            h = o * torch.tanh(c)
            outs.append(h)
        return torch.stack(outs, 1)


class Classifier(nn.Module):
    def __init__(self, cfg, library):
        super().__init__()
        self.emb = nn.Embedding(cfg.vocab, cfg.emb)
        self.library = library
        if library:
            self.rnn = nn.LSTM(cfg.emb, cfg.hidden, batch_first=True)
        else:
            self.rnn = LSTMLayer(cfg.emb, cfg.hidden)
        self.head = nn.Sequential(nn.Linear(cfg.hidden, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, ids):
        out = self.rnn(self.emb(ids))
        if self.library:
            out = out[0]
        return self.head(out.mean(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times", type=str, default="")
    args = parser.parse_args()
    torch.manual_seed(1)
    cfg = Config()
    ids = torch.randint(0, cfg.vocab, (4096, cfg.length))
    labels = (ids.float().mean(1) > cfg.vocab / 2).long()
    model = Classifier(cfg, args.better)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    loss_fn = nn.CrossEntropyLoss()
    begin = time.perf_counter()
    durations = []
    n = 0
    while time.perf_counter() - begin < args.seconds:
        s = time.perf_counter()
        sel = torch.randint(0, len(ids), (cfg.batch,))
        loss = loss_fn(model(ids[sel]), labels[sel])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
        optimizer.step()
        n += 1
        if n % 25 == 0:
            print("iter", n, "loss", loss.item())
        durations.append(time.perf_counter() - s)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(durations, f)


if __name__ == "__main__":
    main()
