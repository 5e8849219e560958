"""Tag short loops (drums / bass / pads ...) from raw audio. Home project."""

import argparse
import json
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

SR = 16000
p = argparse.ArgumentParser()
p.add_argument("--seconds", type=float, default=12.0)
p.add_argument("--better", action="store_true")
p.add_argument("--times")
opt = p.parse_args()
torch.manual_seed(7)


def hz2mel(f):
    return 2595.0 * math.log10(1.0 + f / 700.0)


def mel2hz(m):
    return 700.0 * (10 ** (m / 2595.0) - 1.0)


def mel_matrix(n_mels=128, n_fft=1024, fmin=20.0, fmax=8000.0):
    lo, hi = hz2mel(fmin), hz2mel(fmax)
    pts = [mel2hz(lo + (hi - lo) * i / (n_mels + 1)) for i in range(n_mels + 2)]
    fb = torch.zeros(n_mels, n_fft // 2 + 1)
    for m in range(1, n_mels + 1):
        a, c, b = pts[m - 1], pts[m], pts[m + 1]
        for k in range(n_fft // 2 + 1):
            f = k * SR / n_fft
            if a < f <= c:
                fb[m - 1, k] = (f - a) / (c - a)
            elif c < f < b:
                fb[m - 1, k] = (b - f) / (b - c)
    return fb


class LogMel(nn.Module):
    def __init__(self, keep):
        super().__init__()
        self.keep = keep
        if keep:
            self.register_buffer("fb", mel_matrix())
            self.register_buffer("win", torch.hann_window(1024))

    def forward(self, wav):
        if self.keep:
            fb, win = self.fb, self.win
        else:
            fb = mel_matrix().to(wav.device)
            win = torch.hann_window(1024).to(wav.device)
        spec = torch.stft(wav, 1024, 256, window=win, return_complex=True).abs() ** 2
        return torch.log(fb @ spec + 1e-6)


class Tagger(nn.Module):
    def __init__(self, keep, n_tags=12):
        super().__init__()
        self.front = LogMel(keep)
        self.c1 = nn.Conv2d(1, 8, 3, padding=1)
        self.c2 = nn.Conv2d(8, 24, 3, padding=1)
        self.c3 = nn.Conv2d(24, 64, 3, padding=1)
        self.out = nn.Linear(64, n_tags)

    def forward(self, wav):
        x = self.front(wav).unsqueeze(1)
        x = F.max_pool2d(F.relu(self.c1(x)), 2)
        x = F.max_pool2d(F.relu(self.c2(x)), 2)
        x = F.relu(self.c3(x)).mean((2, 3))
        return self.out(x)


clips = torch.randn(256, SR) * torch.rand(256, 1)
tags = (torch.rand(256, 12) < 0.2).float()
net = Tagger(keep=opt.better)
adam = torch.optim.Adam(net.parameters(), 3e-4)
took = []
t_end = time.time() + opt.seconds
step = 0
while time.time() < t_end:
    t0 = time.perf_counter()
    pick = torch.randint(0, 256, (8,))
    pred = net(clips[pick])
    loss = F.binary_cross_entropy_with_logits(pred, tags[pick])
    adam.zero_grad()
    loss.backward()
    adam.step()
    if step % 20 == 0:
        print(step, round(loss.item(), 4))
    step += 1
    took.append(time.perf_counter() - t0)

if opt.times:
    with open(opt.times, "w") as fh:
        json.dump(took, fh)
