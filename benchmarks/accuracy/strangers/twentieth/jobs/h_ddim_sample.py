"""Class-conditional DDIM sampling with classifier-free guidance; one request is a batch of 2 small images."""

import argparse
import io
import json
import math
import time

import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

SIZE, CLASSES, STEPS, GUIDANCE = 24, 20, 8, 2.5


def time_embedding(t, dim):
    freq = torch.exp(torch.arange(dim // 2) * (-math.log(10_000) / (dim // 2)))
    angle = t[:, None].float() * freq
    return torch.cat([angle.sin(), angle.cos()], 1)


class ResBlock(nn.Module):
    def __init__(self, cin, cout, emb):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, cin), nn.GroupNorm(8, cout)
        self.conv1, self.conv2 = nn.Conv2d(cin, cout, 3, padding=1), nn.Conv2d(cout, cout, 3, padding=1)
        self.shift = nn.Linear(emb, cout)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x))) + self.shift(emb)[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class NoiseModel(nn.Module):
    def __init__(self, width=32, emb=128):
        super().__init__()
        self.classes = nn.Embedding(CLASSES + 1, emb)
        self.time = nn.Sequential(nn.Linear(emb, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down1, self.down2 = ResBlock(width, width, emb), ResBlock(width, 2 * width, emb)
        self.mid = ResBlock(2 * width, 2 * width, emb)
        self.up2, self.up1 = ResBlock(4 * width, 2 * width, emb), ResBlock(3 * width, width, emb)
        self.head = nn.Conv2d(width, 3, 3, padding=1)
        self.emb = emb

    def forward(self, x, t, label):
        emb = F.silu(self.time(time_embedding(t, self.emb)) + self.classes(label))
        a = self.down1(self.stem(x), emb)
        b = self.down2(F.avg_pool2d(a, 2), emb)
        c = self.mid(b, emb)
        c = self.up2(torch.cat([c, b], 1), emb)
        return self.head(self.up1(torch.cat([F.interpolate(c, scale_factor=2), a], 1), emb))


class Sampler:
    def __init__(self, model):
        self.model = model
        betas = torch.linspace(1e-4, 0.02, 1000)
        alpha = (1 - betas).cumprod(0)
        self.steps = torch.linspace(999, 0, STEPS).long().tolist()
        self.alpha = [alpha[t].item() for t in self.steps] + [1.0]

    @torch.inference_mode()
    def __call__(self, label):
        n = len(label)
        x = torch.randn(n, 3, SIZE, SIZE).to(memory_format=torch.channels_last)
        both = torch.cat([label, torch.full_like(label, CLASSES)])
        for i, t in enumerate(self.steps):
            now, following = self.alpha[i], self.alpha[i + 1]
            noise = self.model(torch.cat([x, x]), torch.full((2 * n,), t), both)
            conditional, free = noise.chunk(2)
            noise = free + GUIDANCE * (conditional - free)
            clean = ((x - math.sqrt(1 - now) * noise) / math.sqrt(now)).clamp(-1, 1)
            x = math.sqrt(following) * clean + math.sqrt(1 - following) * noise
        return x


def to_png(images):
    pixels = ((images.clamp(-1, 1) + 1) * 127.5).to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
    encoded = []
    for image in pixels:
        stream = io.BytesIO()
        Image.fromarray(image).save(stream, "PNG", compress_level=1)
        encoded.append(stream.getvalue())
    return encoded


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true", help="no difference here")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)

    model = NoiseModel().eval().requires_grad_(False).to(memory_format=torch.channels_last)
    sampler = Sampler(model)
    labels = torch.Generator().manual_seed(91)
    times, sent = [], 0
    begin = last = time.perf_counter()
    while last - begin < args.seconds:
        label = torch.randint(0, CLASSES, (2,), generator=labels)
        sent += sum(len(png) for png in to_png(sampler(label)))
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if len(times) % 20 == 0:
            print(f"{len(times)} requests, {sent >> 10} KiB sent", flush=True)
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
