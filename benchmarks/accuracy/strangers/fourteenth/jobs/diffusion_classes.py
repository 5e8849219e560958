"""Class-prompt conditioned denoising diffusion on 32x32 images with a frozen text encoder."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import CLIPTextConfig, CLIPTextModel

cli = argparse.ArgumentParser()
cli.add_argument("--seconds", type=float, default=20)
cli.add_argument("--better", action="store_true")
cli.add_argument("--times")
args = cli.parse_args()
torch.manual_seed(0)

N_PROMPTS, TOKENS, STEPS = 12, 48, 1000
prompt_ids = torch.randint(2, 1990, (N_PROMPTS, TOKENS))
prompt_ids[:, 0], prompt_ids[:, -1] = 0, 1999
text_encoder = (
    CLIPTextModel(
        CLIPTextConfig(
            vocab_size=2000,
            hidden_size=256,
            intermediate_size=1024,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=TOKENS,
            bos_token_id=0,
            eos_token_id=1999,
            pad_token_id=1,
        )
    )
    .eval()
    .requires_grad_(False)
)

betas = torch.linspace(1e-4, 0.02, STEPS)
alpha_bar = torch.cumprod(1 - betas, 0)


class ResBlock(nn.Module):
    def __init__(self, ch, cond):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, ch), nn.Conv2d(ch, ch, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, ch), nn.Conv2d(ch, ch, 3, padding=1)
        self.emb = nn.Linear(cond, ch)

    def forward(self, x, c):
        h = self.conv1(F.silu(self.norm1(x))) + self.emb(c)[:, :, None, None]
        return x + self.conv2(F.silu(self.norm2(h)))


class UNet(nn.Module):
    def __init__(self, ch=32, cond=256):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(64, cond), nn.SiLU(), nn.Linear(cond, cond))
        self.stem = nn.Conv2d(3, ch, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(ResBlock(ch, cond) for _ in range(2))
        self.out = nn.ConvTranspose2d(ch, 3, 4, stride=2, padding=1)

    def forward(self, x, t, text):
        freq = torch.exp(-torch.arange(32) / 32 * 9.2)
        phase = t[:, None] * freq
        c = self.time(torch.cat([phase.sin(), phase.cos()], 1)) + text
        h = self.stem(x)
        for b in self.blocks:
            h = b(h, c)
        return self.out(h)


@torch.no_grad()
def encode(ids):
    return text_encoder(input_ids=ids).pooler_output


images = torch.randn(600, 3, 32, 32).clamp(-1, 1)
classes = torch.randint(0, N_PROMPTS, (600,))
table = encode(prompt_ids) if args.better else None
unet = UNet()
optimizer = torch.optim.AdamW(unet.parameters(), lr=2e-4)
times, t_begin = [], time.perf_counter()
while time.perf_counter() - t_begin < args.seconds:
    t0 = time.perf_counter()
    pick = torch.randint(0, 600, (16,))
    x0, cls = images[pick], classes[pick]
    text = table[cls] if table is not None else encode(prompt_ids[cls])
    t = torch.randint(0, STEPS, (16,))
    noise = torch.randn_like(x0)
    ab = alpha_bar[t][:, None, None, None]
    loss = F.mse_loss(unet(ab.sqrt() * x0 + (1 - ab).sqrt() * noise, t, text), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    times.append(time.perf_counter() - t0)
print(f"mse {loss.item():.3f}")
if args.times:
    with open(args.times, "w") as fh:
        json.dump(times, fh)
