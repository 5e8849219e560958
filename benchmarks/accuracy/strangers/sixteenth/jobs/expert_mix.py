"""Language-model block with a switch feed-forward layer (one expert per token) on synthetic code tokens."""

import argparse, json, time
import torch
from torch import nn
import torch.nn.functional as F


class Expert(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.up, self.down = nn.Linear(d, h), nn.Linear(h, d)

    def forward(self, x):
        return self.down(F.silu(self.up(x)))


class Switch(nn.Module):
    def __init__(self, d=128, h=384, experts=4):
        super().__init__()
        self.router = nn.Linear(d, experts)
        self.experts = nn.ModuleList(Expert(d, h) for _ in range(experts))

    def route(self, x):
        prob = self.router(x).softmax(-1)
        weight, choice = prob.max(-1)
        share = F.one_hot(choice, len(self.experts)).float().mean(0)
        return weight, choice, len(self.experts) * (share * prob.mean(0)).sum()

    def forward(self, x):
        weight, choice, balance = self.route(x)
        y = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            y = y + torch.where((choice == k)[:, None], expert(x), 0.0)
        return y * weight[:, None], balance


class SwitchB(Switch):
    def forward(self, x):
        weight, choice, balance = self.route(x)
        y = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            rows = (choice == k).nonzero()[:, 0]
            y = y.index_add(0, rows, expert(x[rows]))
        return y * weight[:, None], balance


class CodeModel(nn.Module):
    def __init__(self, switch, vocab=600, d=128, heads=4, depth=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.qkv = nn.ModuleList(nn.Linear(d, 3 * d) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(d, d) for _ in range(depth))
        self.norm = nn.ModuleList(nn.LayerNorm(d) for _ in range(2 * depth))
        self.ffn = nn.ModuleList(switch(d) for _ in range(depth))
        self.head, self.heads = nn.Linear(d, vocab), heads

    def forward(self, ids):
        x, extra = self.emb(ids), 0.0
        b, t, d = x.shape
        for i, ffn in enumerate(self.ffn):
            q, k, v = self.qkv[i](self.norm[2 * i](x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out[i](a.transpose(1, 2).reshape(b, t, d))
            y, balance = ffn(self.norm[2 * i + 1](x).view(b * t, d))
            x, extra = x + y.view(b, t, d), extra + balance
        return self.head(x), extra


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    model = CodeModel(SwitchB if args.better else Switch)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(0)
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t = time.perf_counter()
        ids = torch.randint(600, (16, 65), generator=g).cummax(1).values
        logits, balance = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()) + 0.01 * balance
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t)
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
