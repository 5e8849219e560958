"""Encode protein sequences once, then classify their family with an LSTM."""

import argparse, json, random, time
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

AMINO = "ACDEFGHIKLMNPQRSTVWY"
CODE = {a: i + 1 for i, a in enumerate(AMINO)}
FAMILIES = 8


def make_proteins(n, rnd):
    motifs = ["".join(rnd.choice(AMINO) for _ in range(6)) for _ in range(FAMILIES)]
    for _ in range(n):
        fam = rnd.randrange(FAMILIES)
        seq = "".join(rnd.choice(AMINO) for _ in range(rnd.randint(60, 140)))
        cut = rnd.randrange(len(seq))
        yield seq[:cut] + motifs[fam] + seq[cut:], fam


def encode_all(proteins):
    encoded = [(torch.tensor([CODE[a] for a in seq]), fam) for seq, fam in proteins]
    encoded.sort(key=lambda e: len(e[0]))
    return encoded


def batches(encoded, size, rnd):
    groups = [encoded[i : i + size] for i in range(0, len(encoded), size)]
    rnd.shuffle(groups)
    for g in groups:
        lengths = torch.tensor([len(s) for s, _ in g])
        yield pad_sequence([s for s, _ in g], batch_first=True), lengths, torch.tensor([f for _, f in g])


class FamilyNet(nn.Module):
    def __init__(self, hidden=256):
        super().__init__()
        self.emb = nn.Embedding(len(AMINO) + 1, 48, padding_idx=0)
        self.rnn = nn.LSTM(48, hidden, batch_first=True)
        self.out = nn.Linear(hidden, FAMILIES)

    def forward(self, ids, lengths):
        h, _ = self.rnn(self.emb(ids))
        real = torch.arange(ids.shape[1]) < lengths[:, None]
        return self.out(h.masked_fill(~real[..., None], -1).amax(1))


def main(args):
    rnd = random.Random(0)
    torch.manual_seed(0)
    t = time.time()
    encoded = encode_all(make_proteins(12000, rnd))
    print(f"encoded {len(encoded)} sequences in {time.time() - t:.1f} s")
    net = FamilyNet()
    opt = torch.optim.Adam(net.parameters(), 2e-3, fused=True)
    times = []
    begin = last = time.perf_counter()
    while last - begin < args.seconds:
        for ids, lengths, fam in batches(encoded, 32, rnd):
            loss = nn.functional.cross_entropy(net(ids, lengths), fam)
            opt.zero_grad()
            loss.backward()
            opt.step()
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if len(times) % 30 == 0:
                print(len(times), round(loss.item(), 3))
            if now - begin > args.seconds:
                break
    return times


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    p.add_argument("--seconds", type=float, default=14)
    a = p.parse_args()
    t = main(a)
    if a.times:
        json.dump(t, open(a.times, "w"))
