"""Tags calls of a hotline (hold music, agitation, silence, ...) from 4 s pieces of audio."""

import argparse
import json
import math
import struct
import time

import numpy as np
import torch
import torch.nn as nn

SR = 16000
N_FFT = 1024
HOP = 320
MELS = 64
TAGS = ["speech", "music", "silence", "agitated", "tone", "crosstalk"]


def hz_to_mel(f):
    return 2595.0 * math.log10(1.0 + f / 700.0)


def mel_to_hz(m):
    return 700.0 * (10 ** (m / 2595.0) - 1.0)


def filterbank():
    lo, hi = hz_to_mel(40.0), hz_to_mel(SR / 2)
    centers = [mel_to_hz(lo + (hi - lo) * k / (MELS + 1)) for k in range(MELS + 2)]
    freqs = np.linspace(0, SR / 2, N_FFT // 2 + 1)
    fb = np.zeros((MELS, len(freqs)), dtype=np.float32)
    for m in range(MELS):
        left, mid, right = centers[m : m + 3]
        for k, f in enumerate(freqs):
            up = (f - left) / (mid - left)
            down = (right - f) / (right - mid)
            fb[m, k] = max(0.0, min(up, down))
    return torch.from_numpy(fb)


class LogMel:
    def __init__(self):
        self.window = torch.hann_window(N_FFT)
        self.fb = filterbank()

    def __call__(self, wav):
        spec = torch.stft(wav, N_FFT, HOP, window=self.window, return_complex=True).abs().square()
        return torch.log(self.fb @ spec + 1e-6)


class Tagger(nn.Module):
    def __init__(self, c=56):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, c, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(c, 2 * c, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(2 * c, 4 * c, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(4 * c, 4 * c, 3, 1, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.out = nn.Linear(4 * c, len(TAGS))

    def forward(self, mel):
        return self.out(self.net(mel.unsqueeze(1)))


class Service:
    """body of a request: N_PIECES x 4 s of little endian 16 bit samples"""

    def __init__(self, raw):
        self.model = Tagger().eval()
        self.front = LogMel()
        self.raw = raw

    def decode(self, body):
        if self.raw:
            return torch.from_numpy(np.frombuffer(body, dtype="<i2").astype(np.float32) / 32768.0)
        samples = struct.unpack("<%dh" % (len(body) // 2), body)
        return torch.tensor([s / 32768.0 for s in samples])

    @torch.inference_mode()
    def tag(self, body):
        wav = self.decode(body).view(-1, 4 * SR)
        mel = self.front(wav)
        mel = (mel - mel.mean((1, 2), keepdim=True)) / (mel.std((1, 2), keepdim=True) + 1e-5)
        p = self.model(mel).sigmoid()
        return [{t: round(v, 4) for t, v in zip(TAGS, row)} for row in p.tolist()]


def caller(rng, pieces=4):
    t = np.arange(4 * SR) / SR
    f0 = rng.uniform(90, 240, (pieces, 1))
    x = 0.3 * np.sin(2 * np.pi * f0 * t) + 0.05 * rng.standard_normal((pieces, len(t)))
    return (np.clip(x, -1, 1) * 32767).astype("<i2").tobytes()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    service = Service(raw=args.better)
    calls = [caller(rng) for _ in range(20)]
    lat = []
    t0 = time.perf_counter()
    while time.perf_counter() - t0 < args.seconds:
        body = calls[len(lat) % len(calls)]
        t = time.perf_counter()
        tags = service.tag(body)
        lat.append(time.perf_counter() - t)
        if len(lat) % 30 == 0:
            print(len(lat), "calls; last:", tags[0])
    if args.times:
        with open(args.times, "w") as f:
            json.dump(lat, f)
