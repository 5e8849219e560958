"""Waveform denoiser: a transformer over patches of samples, trained on samples and on a short-time spectrum."""

import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from stopwatch import Stopwatch

torch.set_float32_matmul_precision("high")
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
cured = os.environ.get("CURED") == "1"
if device.type == "cuda":
    BATCH, SAMPLES, DIM, LAYERS, HEADS, WINDOW, HOP = 32, 65536, 512, 4, 8, 1024, 64
else:
    BATCH, SAMPLES, DIM, LAYERS, HEADS, WINDOW, HOP = 2, 1024, 32, 1, 2, 64, 16
PATCH = 64


class SpectrumLoss(nn.Module):
    """L1 between log magnitudes of short-time spectra."""

    def __init__(self, window, hop):
        super().__init__()
        self.window_size, self.hop = window, hop
        turns = np.outer(np.arange(window), np.arange(window // 2)) / window
        basis = np.concatenate([np.cos(2 * np.pi * turns), np.sin(2 * np.pi * turns)], axis=1)
        taper = np.hanning(window)
        if cured:
            basis, taper = basis.astype(np.float32), taper.astype(np.float32)
        self.register_buffer("basis", torch.from_numpy(basis))
        self.register_buffer("taper", torch.from_numpy(taper))

    def log_magnitude(self, wave):
        frames = wave.unfold(1, self.window_size, self.hop) * self.taper
        real, imaginary = (frames @ self.basis).chunk(2, dim=-1)
        return torch.log(real.square() + imaginary.square() + 1e-4)

    def forward(self, guess, clean):
        with torch.no_grad():
            wanted = self.log_magnitude(clean)
        return F.l1_loss(self.log_magnitude(guess), wanted)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, DIM * 3), nn.Linear(DIM, DIM)
        self.ff = nn.Sequential(nn.Linear(DIM, DIM * 4), nn.GELU(), nn.Linear(DIM * 4, DIM))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, DIM))
        return x + self.ff(self.norm2(x))


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(PATCH, DIM)
        self.pos = nn.Parameter(torch.randn(SAMPLES // PATCH, DIM) * 0.02)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm, self.out = nn.LayerNorm(DIM), nn.Linear(DIM, PATCH)

    def forward(self, wave):
        x = self.inp(wave.view(len(wave), -1, PATCH)) + self.pos
        return wave + self.out(self.norm(self.layers(x))).reshape(wave.shape).float()


def main():
    torch.manual_seed(0)
    model = Denoiser().to(device)
    spectrum = SpectrumLoss(WINDOW, HOP).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=True)
    clips = torch.randn(4, BATCH, SAMPLES, device=device)

    clock = Stopwatch()
    step = 0
    while True:
        clean = clips[step % 4]
        noisy = clean + 0.1 * torch.randn_like(clean)
        with torch.autocast(device.type, torch.bfloat16):
            guess = model(noisy)
        loss = F.l1_loss(guess, clean) + 0.5 * spectrum(guess, clean)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        step += 1
        if step % 50 == 0:
            print("step", step, "loss", loss.item())
        if clock.tick():
            break


if __name__ == "__main__":
    main()
