"""Batch rendering of plucked strings: learned resonators excited by short bursts (offline, no training)."""

import argparse, json, time
import torch
from torch import nn

ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=6)
ap.add_argument("--times")
ap.add_argument("--better", action="store_true")
args = ap.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
if args.better:
    torch.set_flush_denormal(True)


class ResonatorBank(nn.Module):
    """complex one-pole filters, advanced block by block; every voice has its own decay"""

    def __init__(self, voices, modes):
        super().__init__()
        theta = torch.rand(voices, modes) * 3.0
        self.register_buffer("re", torch.cos(theta))
        self.register_buffer("im", torch.sin(theta))
        self.decay = nn.Parameter(0.30 + 0.2 * torch.rand(voices, modes))

    def forward(self, a, b):
        re, im = self.re * self.decay, self.im * self.decay
        return a * re - b * im, a * im + b * re


class Renderer(nn.Module):
    def __init__(self, voices=64, modes=512):
        super().__init__()
        self.bank, self.mix = ResonatorBank(voices, modes), nn.Linear(modes, 16)
        self.shape = (voices, modes)

    @torch.inference_mode()
    def note(self, length=150, burst=10):
        a, b = torch.zeros(self.shape), torch.zeros(self.shape)
        frames = []
        for n in range(length):
            if n < burst:
                a = a + torch.randn(self.shape)
            a, b = self.bank(a, b)
            if n % 5 == 0:
                frames.append(torch.tanh(self.mix(a)))
        return torch.stack(frames, 1)


renderer = Renderer().eval()
stamps, level = [time.perf_counter()], []
while stamps[-1] - stamps[0] < args.seconds or len(stamps) < 25:
    wav = renderer.note()
    level.append(wav.abs().max().item())
    stamps.append(time.perf_counter())
print(f"rendered {len(level)} notes, loudest {max(level):.2f}")
if args.times:
    json.dump([b - a for a, b in zip(stamps, stamps[1:])], open(args.times, "w"))
