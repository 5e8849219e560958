"""Speech denoiser trained on the fly with room impulse responses applied as augmentation."""

import argparse, json, time
import torch
from torch import nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=6)
ap.add_argument("--times")
ap.add_argument("--better", action="store_true")
ap.add_argument("--ir-len", type=int, default=6000)
a = ap.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
SR = 16000


class RoomReverb(nn.Module):
    """Convolves every utterance with one of `n` decaying noise responses."""

    def __init__(self, n, length, use_fft):
        super().__init__()
        decay = torch.exp(-torch.linspace(0, 7, length))
        self.register_buffer("rirs", torch.randn(n, length) * decay)
        self.use_fft = use_fft

    @torch.no_grad()
    def forward(self, wav):
        b, t = wav.shape
        rir = self.rirs[torch.randint(0, len(self.rirs), (b,))]
        if self.use_fft:
            n = 1 << (t + rir.shape[1] - 1).bit_length()
            y = torch.fft.irfft(torch.fft.rfft(wav, n) * torch.fft.rfft(rir, n), n)[:, :t]
        else:
            x = F.pad(wav, (rir.shape[1] - 1, 0))
            y = F.conv1d(x[None], rir.flip(1)[:, None], groups=b)[0]
        return y / y.abs().amax(1, keepdim=True).clamp_min(1e-6)


class Denoiser(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.enc = nn.Conv1d(1, c, 16, stride=8, padding=4)
        self.mid = nn.GRU(c, c, batch_first=True)
        self.post = nn.Sequential(nn.Conv1d(c, c, 3, padding=1), nn.PReLU(), nn.Conv1d(c, c, 3, padding=1))
        self.dec = nn.ConvTranspose1d(c, 1, 16, stride=8, padding=4)

    def forward(self, wav):
        h = self.enc(wav[:, None])
        pooled = F.avg_pool1d(h, 8)
        g, _ = self.mid(pooled.transpose(1, 2))
        h = h * torch.sigmoid(F.interpolate(g.transpose(1, 2), size=h.shape[-1]))
        return self.dec(self.post(h))[:, 0]


def batches(bs=6, seconds=1.0):
    n = int(SR * seconds)
    tt = torch.arange(n) / SR
    while True:
        f0 = 90 + 160 * torch.rand(bs, 1)
        yield torch.sin(2 * torch.pi * f0 * tt) + 0.3 * torch.sin(4 * torch.pi * f0 * tt)


reverb = RoomReverb(40, a.ir_len, a.better)
model = Denoiser()
opt = torch.optim.Adam(model.parameters(), 1e-3)
steps, prev = [], time.perf_counter()
start = prev
for clean in batches():
    noisy = reverb(clean) + 0.02 * torch.randn_like(clean)
    loss = F.l1_loss(model(noisy), clean)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    opt.step()
    now = time.perf_counter()
    steps.append(now - prev)
    prev = now
    if len(steps) % 20 == 0:
        print(f"{len(steps):5d} l1={float(loss):.4f}")
    if now - start > a.seconds and len(steps) >= 24:
        break
if a.times:
    json.dump(steps, open(a.times, "w"))
