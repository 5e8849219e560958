"""Masked-unit pretraining of a speech encoder on log-mel frames (HuBERT style, first iteration)."""

import os

import torch
import torch.nn.functional as F
from stopwatch import Stopwatch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
gpu = device == "cuda"
cured = os.environ.get("CURED") == "1"
DIM, LAYERS, HEADS, UNITS = (768, 16, 12, 504) if gpu else (64, 2, 2, 24)
BATCH, FRAMES = (16, 512) if gpu else (2, 32)
REPORT_EVERY = 50


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.out = nn.Linear(DIM, DIM)
        self.up = nn.Linear(DIM, 4 * DIM)
        self.down = nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, DIM))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class SpeechEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(80, DIM)
        self.position = nn.Parameter(torch.randn(FRAMES, DIM) * 0.02)
        self.mask_token = nn.Parameter(torch.randn(DIM) * 0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, UNITS)

    def forward(self, mel, masked):
        x = self.project(mel)
        x = torch.where(masked[..., None], self.mask_token.to(x.dtype), x) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class ActivationWatch:
    """Peak and RMS of what each layer gives, to see early when an encoder drifts off."""

    def __init__(self, model):
        self.peak, self.rms = {}, {}
        for name, module in model.named_modules():
            if name.startswith("blocks.") and isinstance(module, (nn.Linear, nn.LayerNorm)):
                module.register_forward_hook(self.hook(name))

    def hook(self, name):
        def look(module, inputs, output):
            output = output.detach()
            peak = output.abs().amax()
            rms = output.float().square().mean().sqrt()
            if cured:
                self.peak[name], self.rms[name] = peak, rms
            else:
                self.peak[name], self.rms[name] = peak.item(), rms.item()

        return look

    def report(self):
        peaks = {name: float(value) for name, value in self.peak.items()}
        worst = max(peaks, key=peaks.get)
        print(f"  largest activation {peaks[worst]:.2f} in {worst}, rms {float(self.rms[worst]):.3f}")


torch.manual_seed(0)
model = SpeechEncoder().to(device)
watch = ActivationWatch(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=0.01, fused=True)
batches = [
    (
        torch.randn(BATCH, FRAMES, 80, device=device),
        torch.rand(BATCH, FRAMES, device=device) < 0.5,
        torch.randint(UNITS, (BATCH, FRAMES), device=device),
    )
    for _ in range(4)
]

clock = Stopwatch()
step = 0
while True:
    mel, masked, units = batches[step % len(batches)]
    with torch.autocast(device, torch.bfloat16):
        logits = model(mel, masked)
    loss = F.cross_entropy(logits.float().flatten(0, 1), units.flatten(), reduction="none")
    loss = (loss * masked.flatten()).sum() / masked.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % REPORT_EVERY == 0:
        print(f"step {step} loss {loss.item():.3f}")
        watch.report()
    if clock.tick():
        break
