"""Text-conditioned latent diffusion sampling; a step is one denoising step of a batch."""

import argparse
import json
import time

import torch
import torch.nn as nn


class TextEncoder(nn.Module):
    def __init__(self, vocab=4000, dim=128, layers=4, length=77):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.randn(length, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, 4, dim * 4, dropout=0.0, activation="gelu", batch_first=True)
        self.net = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids):
        return self.net(self.tok(ids) + self.pos)


class Denoiser(nn.Module):
    def __init__(self, width=48, dim=128):
        super().__init__()
        self.inp = nn.Conv2d(4, width, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.attn = nn.MultiheadAttention(width, 2, kdim=dim, vdim=dim, batch_first=True)
        self.mid = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1))
        self.out = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x, t, context):
        h = self.inp(x) + self.time(t.view(1, 1))[:, :, None, None]
        q = h.flatten(2).transpose(1, 2)
        h = h + self.attn(q, context, context, need_weights=False)[0].transpose(1, 2).view_as(h)
        return self.out(h + self.mid(h))


class Pipeline:
    def __init__(self, steps=20, scale=5.0):
        self.text, self.unet = TextEncoder().eval(), Denoiser().eval()
        self.sigmas = torch.linspace(1.0, 0.0, steps + 1)
        self.scale = scale

    @torch.inference_mode()
    def sample(self, prompts, negative, on_step, encode_once):
        x = torch.randn(len(prompts), 4, 32, 32)
        if encode_once:
            context = self.text(torch.cat([prompts, negative]))
        for i in range(len(self.sigmas) - 1):
            if not encode_once:
                context = self.text(torch.cat([prompts, negative]))
            eps = self.unet(torch.cat([x, x]), self.sigmas[i], context)
            cond, uncond = eps.chunk(2)
            eps = uncond + self.scale * (cond - uncond)
            x = x + (self.sigmas[i + 1] - self.sigmas[i]) * eps
            if on_step():
                break
        return x


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(0)
    pipe = Pipeline()
    times = []
    clock = {"last": time.perf_counter()}
    stop = clock["last"] + args.seconds

    def tick():
        now = time.perf_counter()
        times.append(now - clock["last"])
        clock["last"] = now
        return now >= stop

    while clock["last"] < stop:
        prompts = torch.randint(1, 4000, (4, 77))
        images = pipe.sample(prompts, torch.zeros_like(prompts), tick, encode_once=args.better)
    print(f"{len(times)} denoising steps, latent std {images.std().item():.3f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
