"""Tiny radiance field fitted to a handful of posed photographs."""

import argparse
import json
import time

import torch
from torch import nn

args = argparse.ArgumentParser()
args.add_argument("--seconds", type=float, default=20)
args.add_argument("--times")
args.add_argument("--better", action="store_true")
args.add_argument("--side", type=int, default=400)
args.add_argument("--rays", type=int, default=256)
args.add_argument("--samples", type=int, default=24)
args = args.parse_args()


class Camera:
    def __init__(self, pose, side, focal):
        self.pose, self.side, self.focal = pose, side, focal

    def rays(self, rows, cols):
        d = torch.stack(
            [(cols - self.side / 2) / self.focal, -(rows - self.side / 2) / self.focal, -torch.ones_like(rows)], -1
        )
        d = (d[..., None, :] * self.pose[:, :3]).sum(-1)
        d = d / d.norm(dim=-1, keepdim=True)
        return self.pose[:, 3].expand_as(d), d

    def all_rays(self):
        lin = torch.arange(self.side, dtype=torch.float32)
        rows, cols = torch.meshgrid(lin, lin, indexing="ij")
        o, d = self.rays(rows, cols)
        return o.reshape(-1, 3), d.reshape(-1, 3)


def posed_views(n, side):
    views = []
    for i in range(n):
        q = torch.linalg.qr(torch.randn(3, 3)).Q
        pose = torch.cat([q, 3.0 * q[:, 2:]], 1)
        views.append((Camera(pose, side, side * 1.1), torch.rand(side * side, 3)))
    return views


def encode(x, bands=6):
    freq = 2.0 ** torch.arange(bands)
    a = (x[..., None] * freq).flatten(-2)
    return torch.cat([x, a.sin(), a.cos()], -1)


class Field(nn.Module):
    def __init__(self, w=64):
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(39, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, 4)
        )

    def forward(self, x):
        y = self.mlp(encode(x))
        return torch.sigmoid(y[..., :3]), torch.relu(y[..., 3])


def render(field, o, d, n, near=1.5, far=4.5):
    z = near + (far - near) * (torch.arange(n) + torch.rand(len(o), n)) / n
    rgb, sigma = field(o[:, None] + d[:, None] * z[..., None])
    alpha = 1 - torch.exp(-sigma * (far - near) / n)
    trans = torch.cumprod(torch.cat([torch.ones(len(o), 1), 1 - alpha + 1e-8], 1), 1)[:, :-1]
    return ((alpha * trans)[..., None] * rgb).sum(1)


torch.manual_seed(0)
views = posed_views(6, args.side)
field = Field()
opt = torch.optim.Adam(field.parameters(), lr=5e-4, fused=True)
elapsed, begin = [], time.perf_counter()
while time.perf_counter() - begin < args.seconds:
    t = time.perf_counter()
    camera, pixels = views[int(torch.randint(len(views), ()))]
    pick = torch.randint(args.side * args.side, (args.rays,))
    if args.better:
        o, d = camera.rays((pick // args.side).float(), (pick % args.side).float())
    else:
        o, d = camera.all_rays()
        o, d = o[pick], d[pick]
    loss = (render(field, o, d, args.samples) - pixels[pick]).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    elapsed.append(time.perf_counter() - t)
print("psnr", -10 * torch.log10(loss.detach()).item())
if args.times:
    with open(args.times, "w") as f:
        json.dump(elapsed, f)
