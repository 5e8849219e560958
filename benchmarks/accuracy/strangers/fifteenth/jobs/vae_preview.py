"""Convolutional VAE on synthetic faces. Reconstructions are written as a contact sheet for the web page."""

import argparse
import json
import os
import shutil
import tempfile
import time

import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=20)
ap.add_argument("--times")
ap.add_argument("--better", action="store_true")
ap.add_argument("--batch", type=int, default=16)
args = ap.parse_args()
args.sheet_every = 200 if args.better else 5


def faces(n, side=64):
    lin = torch.linspace(-1, 1, side)
    y, x = torch.meshgrid(lin, lin, indexing="ij")
    tone = 0.4 + 0.5 * torch.rand(n, 3, 1, 1)
    wide = 0.5 + 0.3 * torch.rand(n, 1, 1, 1)
    head = ((x / wide) ** 2 + (y / 0.85) ** 2 < 1).float()
    eyes = ((x.abs() - 0.25) ** 2 + (y + 0.2) ** 2 < 0.01).float()
    return (head * tone * (1 - eyes) + 0.03 * torch.randn(n, 3, side, side)).clamp(0, 1)


class VAE(nn.Module):
    def __init__(self, z=32, w=24):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(3, w, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(w, 2 * w, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(2 * w, 2 * w, 4, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * w * 64, 2 * z),
        )
        self.dec = nn.Sequential(
            nn.Linear(z, 2 * w * 64),
            nn.Unflatten(1, (2 * w, 8, 8)),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * w, 2 * w, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * w, w, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(w, 3, 4, 2, 1),
        )

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, 1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z), mu, logvar


@torch.no_grad()
def contact_sheet(model, held_out, path):
    model.eval()
    rec = model(held_out)[0].sigmoid()
    both = torch.cat([held_out, rec]).mul(255).byte()
    n, c, h, w = both.shape
    sheet = both.view(8, n // 8, c, h, w).permute(0, 3, 1, 4, 2).reshape(8 * h, n // 8 * w, c)
    Image.fromarray(sheet.numpy()).save(path, optimize=True)
    model.train()


torch.manual_seed(0)
train, held_out = faces(512), faces(32)
model = VAE().to(memory_format=torch.channels_last)
opt = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
folder = tempfile.mkdtemp(prefix="vae_")
times, step, begin = [], 0, time.perf_counter()
while time.perf_counter() - begin < args.seconds:
    t = time.perf_counter()
    x = train[torch.randint(len(train), (args.batch,))]
    logits, mu, logvar = model(x)
    rec = F.binary_cross_entropy_with_logits(logits, x, reduction="sum") / args.batch
    kl = 0.5 * (mu.square() + logvar.exp() - 1 - logvar).sum() / args.batch
    opt.zero_grad()
    (rec + kl).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 100.0)
    opt.step()
    if step % args.sheet_every == 0:
        contact_sheet(model, held_out, os.path.join(folder, f"sheet_{step:06d}.png"))
    step += 1
    times.append(time.perf_counter() - t)

print("elbo", -(rec + kl).item(), "sheets", len(os.listdir(folder)))
shutil.rmtree(folder)
if args.times:
    with open(args.times, "w") as f:
        json.dump(times, f)
