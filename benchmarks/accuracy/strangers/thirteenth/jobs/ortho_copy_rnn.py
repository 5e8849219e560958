"""Copy-memory task with an orthogonal recurrent network."""

import argparse
import time
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import orthogonal

SYMBOLS, KEEP, GAP, HID, BATCH = 8, 6, 12, 160, 256


class OrthoRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS + 2, HID)
        self.rec = orthogonal(nn.Linear(HID, HID, bias=False), orthogonal_map="cayley")
        self.bias = nn.Parameter(torch.zeros(HID))
        self.ff1 = nn.Linear(HID, 4 * HID)
        self.ff2 = nn.Linear(4 * HID, SYMBOLS)

    def modrelu(self, h):
        mag = h.abs()
        return torch.sign(h) * F.relu(mag + self.bias)

    def forward(self, tokens):
        x = self.embed(tokens)
        h = x.new_zeros(tokens.size(0), HID)
        tail = []
        total = tokens.size(1)
        for t in range(total):
            h = self.modrelu(self.rec(h) + x[:, t])
            if t >= total - KEEP:
                tail.append(h)
        out = torch.stack(tail, 1)
        return self.ff2(F.relu(self.ff1(out)))


def make_batch():
    msg = torch.randint(0, SYMBOLS, (BATCH, KEEP))
    blank = torch.full((BATCH, GAP), SYMBOLS)
    go = torch.full((BATCH, KEEP), SYMBOLS + 1)
    return torch.cat([msg, blank, go], 1), msg


def evaluate(net):
    net.eval()
    with torch.no_grad(), parametrize.cached():
        tokens, msg = make_batch()
        acc = (net(tokens).argmax(-1) == msg).float().mean()
    net.train()
    return acc.item()


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    return p.parse_args()


def run(args):
    torch.manual_seed(1)
    net = OrthoRNN()
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-3, alpha=0.9)
    sched = torch.optim.lr_scheduler.StepLR(opt, 200, 0.7)
    seen, stamps = 0, []
    t_end = time.perf_counter() + args.seconds
    last = time.perf_counter()
    while last < t_end:
        tokens, msg = make_batch()
        with parametrize.cached() if args.better else nullcontext():
            logits = net(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1), msg.flatten())
            opt.zero_grad()
            loss.backward()
        nn.utils.clip_grad_value_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        seen += 1
        if seen % 50 == 0:
            print(f"{seen:6d} loss={loss.item():.4f} acc={evaluate(net):.3f}")
        now = time.perf_counter()
        stamps.append(now - last)
        last = now
    return stamps


if __name__ == "__main__":
    args = parse()
    out = run(args)
    if args.times:
        with open(args.times, "w") as fp:
            fp.write("".join(f"{v:.6f}\n" for v in out))
