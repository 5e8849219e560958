"""Autoregressive frame decoder: every frame depends on the attention over text given the previous output."""

import argparse
import json
import time

import torch
from torch import nn
from torch.nn import functional as F


class Decoder(nn.Module):
    def __init__(self, mel=40, text=128, hidden=256):
        super().__init__()
        self.prenet = nn.Sequential(nn.Linear(mel, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.cell = nn.GRUCell(64 + text, hidden)
        self.query = nn.Linear(hidden, text, bias=False)
        self.frame = nn.Linear(hidden + text, mel)

    def forward(self, memory, frames):
        steps = frames.size(1)
        state = memory.new_zeros(memory.size(0), self.cell.hidden_size)
        context = memory.mean(1)
        previous = memory.new_zeros(memory.size(0), frames.size(2))
        outputs = []
        for _ in range(steps):
            state = self.cell(torch.cat([self.prenet(previous), context], 1), state)
            weights = torch.softmax((memory @ self.query(state)[:, :, None]).squeeze(2), 1)
            context = (weights[:, None] @ memory).squeeze(1)
            previous = self.frame(torch.cat([state, context], 1))
            outputs.append(previous)
        return torch.stack(outputs, 1)


class Synth(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(60, 128)
        self.enc = nn.GRU(128, 64, batch_first=True, bidirectional=True)
        self.dec = Decoder()

    def forward(self, text, frames):
        memory, _ = self.enc(self.emb(text))
        return self.dec(memory, frames)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true", help="no effect")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    texts = torch.randint(1, 60, (400, 30))
    mels = torch.randn(400, 40, 40)
    model = Synth()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    times = []
    t0 = time.perf_counter()
    while time.perf_counter() - t0 < args.seconds:
        tic = time.perf_counter()
        idx = torch.randint(0, 400, (48,))
        loss = F.l1_loss(model(texts[idx], mels[idx]), mels[idx])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        times.append(time.perf_counter() - tic)
        if len(times) % 20 == 0:
            print(f"{len(times):5d} {loss.item():.4f}")
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(times, fh)


if __name__ == "__main__":
    main()
