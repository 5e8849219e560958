"""Speech enhancement: a recurrent network predicts a spectral mask for noisy clips."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=10)
parser.add_argument("--better", action="store_true")
parser.add_argument("--times", default=None)
args = parser.parse_args()

torch.manual_seed(11)
N_FFT, HOP, BINS = 256, 128, 129
CLIP = 128 * 79


class StepwiseEncoder(nn.Module):
    def __init__(self, d_in, hidden):
        super().__init__()
        self.hidden = hidden
        self.cell = nn.GRUCell(d_in, hidden)

    def forward(self, x):
        h = x.new_zeros(x.shape[0], self.hidden)
        outputs = []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            outputs.append(h)
        return torch.stack(outputs, dim=1)


class FullEncoder(nn.Module):
    def __init__(self, d_in, hidden):
        super().__init__()
        self.rnn = nn.GRU(d_in, hidden, batch_first=True)

    def forward(self, x):
        return self.rnn(x)[0]


class MaskNet(nn.Module):
    def __init__(self, hidden=96):
        super().__init__()
        encoder = FullEncoder if args.better else StepwiseEncoder
        self.norm = nn.LayerNorm(BINS)
        self.encoder = encoder(BINS, hidden)
        self.mask = nn.Linear(hidden, BINS)

    def forward(self, mag):
        x = self.norm(torch.log1p(mag))
        return torch.sigmoid(self.mask(self.encoder(x)))


window = torch.hann_window(N_FFT)


def spectrum(wave):
    spec = torch.stft(wave, N_FFT, HOP, window=window, return_complex=True)
    return spec.abs().transpose(1, 2)


def synth_bank(n=256):
    t = torch.arange(CLIP) / 8000
    f0 = 90 + 160 * torch.rand(n, 1)
    voice = sum(torch.sin(2 * torch.pi * k * f0 * t) / k for k in range(1, 5))
    envelope = (torch.sin(2 * torch.pi * 3 * torch.rand(n, 1) * t) > -0.2).float()
    return 0.2 * voice * envelope


clean_bank = synth_bank()
model = MaskNet()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
BATCH = 8

times, step, running = [], 0, 0.0
start = time.perf_counter()
while time.perf_counter() - start < args.seconds:
    t0 = time.perf_counter()
    clean = clean_bank[torch.randint(0, len(clean_bank), (BATCH,))]
    noisy = clean + 0.1 * torch.randn_like(clean)
    clean_mag, noisy_mag = spectrum(clean), spectrum(noisy)
    loss = F.l1_loss(model(noisy_mag) * noisy_mag, clean_mag)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    running += loss.item()
    step += 1
    times.append(time.perf_counter() - t0)
    if step % 100 == 0:
        print(f"step {step} l1 {running / 100:.4f}")
        running = 0.0

print(f"{step} steps")
if args.times:
    with open(args.times, "w") as f:
        json.dump(times, f)
