"""Masked auto-encoder pre-training on short video clips; metrics of every step are kept for the dashboard."""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

FRAMES, SIZE, PATCH, TUBE, KEEP = 8, 48, 8, 2, 0.25
TOKENS = (FRAMES // TUBE) * (SIZE // PATCH) ** 2
PIXELS = TUBE * PATCH * PATCH * 3


def patchify(clips):
    b = clips.shape[0]
    side = SIZE // PATCH
    x = clips.view(b, FRAMES // TUBE, TUBE, side, PATCH, side, PATCH, 3)
    return x.permute(0, 1, 3, 5, 2, 4, 6, 7).reshape(b, TOKENS, PIXELS)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.ff(self.norm2(x))


class VideoMAE(nn.Module):
    def __init__(self, dim=160, decoder_dim=96, depth=4, decoder_depth=1):
        super().__init__()
        self.embed = nn.Linear(PIXELS, dim)
        self.position = nn.Parameter(torch.randn(1, TOKENS, dim) * 0.02)
        self.encoder = nn.ModuleList(Block(dim, 4) for _ in range(depth))
        self.bridge = nn.Linear(dim, decoder_dim)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, decoder_dim))
        self.decoder_position = nn.Parameter(torch.randn(1, TOKENS, decoder_dim) * 0.02)
        self.decoder = nn.ModuleList(Block(decoder_dim, 4) for _ in range(decoder_depth))
        self.head = nn.Linear(decoder_dim, PIXELS)

    def forward(self, clips):
        patches = patchify(clips)
        b = len(patches)
        order = torch.rand(b, TOKENS).argsort(1)
        kept = int(TOKENS * KEEP)
        visible, hidden = order[:, :kept, None], order[:, kept:, None]
        x = self.embed(patches.gather(1, visible.expand(-1, -1, PIXELS)))
        x = x + self.position.expand(b, -1, -1).gather(1, visible.expand(-1, -1, x.shape[2]))
        for block in self.encoder:
            x = block(x)
        x = self.bridge(x)
        full = torch.cat([x, self.mask_token.expand(b, TOKENS - kept, -1)], 1)
        place = self.decoder_position.expand(b, -1, -1).gather(1, order[:, :, None].expand(-1, -1, x.shape[2]))
        full = full + place
        for block in self.decoder:
            full = block(full)
        target = patches.gather(1, hidden.expand(-1, -1, PIXELS))
        target = (target - target.mean(2, keepdim=True)) / (target.std(2, keepdim=True) + 1e-4)
        return F.mse_loss(self.head(full[:, kept:]), target)


class MetricsFile:
    """Per-step metrics on disk; a run that was interrupted carries on with what its predecessor wrote."""

    def __init__(self, path, history, better):
        self.path, self.history, self.better = path, history, better
        if better:
            with open(path, "w") as f:
                f.writelines(json.dumps(row) + "\n" for row in history)
            self.stream = open(path, "a")

    def add(self, row):
        if self.better:
            self.stream.write(json.dumps(row) + "\n")
            self.stream.flush()
            return
        self.history.append(row)
        with open(self.path, "w") as f:
            json.dump(self.history, f)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--resume-step", type=int, default=300)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)

    clips = torch.rand(128, FRAMES, SIZE, SIZE, 3)
    model = VideoMAE()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-4, betas=(0.9, 0.95), weight_decay=0.05, fused=True)
    names = [name for name, _ in model.named_parameters()]
    noise = torch.rand(args.resume_step, len(names)).tolist()
    history = [{"step": i, "loss": 1.0, "grad_norm": dict(zip(names, row))} for i, row in enumerate(noise)]

    with tempfile.TemporaryDirectory() as folder:
        metrics = MetricsFile(Path(folder) / "metrics.json", history, args.better)
        times, step = [], args.resume_step
        begin = last = time.perf_counter()
        while last - begin < args.seconds:
            batch = clips[torch.randint(0, len(clips), (8,))]
            loss = model(batch)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            norms = torch.stack(torch._foreach_norm([p.grad for p in model.parameters()]))
            optimizer.step()
            step += 1
            metrics.add({"step": step, "loss": loss.item(), "grad_norm": dict(zip(names, norms.tolist()))})
            if step % 25 == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            now = time.perf_counter()
            times.append(now - last)
            last = now
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
