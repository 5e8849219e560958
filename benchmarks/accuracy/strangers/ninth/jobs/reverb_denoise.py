"""Speech dereverberation: convolve clean clips with room responses on the fly, train a small net."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

RATE = 8000
CLIP = 8000
TAPS = 2000


class Rooms:
    """Synthetic room impulse responses with exponential decay."""

    def __init__(self, n=40, seed=1):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(TAPS) / RATE
        rt = 0.03 + 0.12 * torch.rand(n, 1, generator=g)
        h = torch.randn(n, TAPS, generator=g) * torch.exp(-t / rt)
        h[:, 0] = 4.0
        self.h = h / h.norm(dim=1, keepdim=True)

    def pick(self, b):
        return self.h[torch.randint(0, len(self.h), (b,))]


def reverberate(clean, rir):
    b, n = clean.shape
    padded = F.pad(clean, (TAPS - 1, 0)).unsqueeze(0)
    return F.conv1d(padded, rir.flip(1).unsqueeze(1), groups=b)[0]


def reverberate_fft(clean, rir):
    n = clean.shape[1] + TAPS
    n = 1 << (n - 1).bit_length()
    return torch.fft.irfft(torch.fft.rfft(clean, n) * torch.fft.rfft(rir, n), n)[:, : clean.shape[1]]


class Dereverb(nn.Module):
    def __init__(self, ch=24):
        super().__init__()
        self.enc = nn.Conv1d(1, ch, 16, stride=8, padding=4)
        self.body = nn.ModuleList(nn.Conv1d(ch, ch, 3, padding=2**k, dilation=2**k) for k in range(6))
        self.dec = nn.ConvTranspose1d(ch, 1, 16, stride=8, padding=4)

    def forward(self, x):
        h = self.enc(x.unsqueeze(1))
        for c in self.body:
            h = h + F.relu(c(h))
        return self.dec(h).squeeze(1)


def tones(b):
    t = torch.arange(CLIP) / RATE
    f = 80 + 600 * torch.rand(b, 5, 1)
    a = torch.rand(b, 5, 1)
    return (a * torch.sin(2 * torch.pi * f * t)).sum(1) / 3


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(17)
    bank = tones(200)
    rooms = Rooms()
    wet = reverberate_fft if args.better else reverberate
    net = Dereverb()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    win = torch.hann_window(256)
    times = []
    start = time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        t = time.perf_counter()
        clean = bank[torch.randint(0, len(bank), (16,))]
        est = net(wet(clean, rooms.pick(16)))
        mag = torch.stft(est, 256, 128, window=win, return_complex=True).abs()
        ref = torch.stft(clean, 256, 128, window=win, return_complex=True).abs()
        loss = F.l1_loss(est, clean) + 0.1 * F.l1_loss(mag, ref)
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t)
        if len(times) % 25 == 0:
            print(len(times), f"{loss.item():.4f}")
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(times, fh)


if __name__ == "__main__":
    main()
