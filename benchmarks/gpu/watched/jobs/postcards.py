# Samples postcards from captions: latent diffusion transformer, classifier-free guidance, Euler steps.
import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

from stopwatch import Stopwatch

cured = os.environ.get("CURED") == "1"
gpu = torch.cuda.is_available()
device = torch.device("cuda" if gpu else "cpu")
dtype = torch.bfloat16 if gpu else torch.float32


class cfg:
    cards = 16 if gpu else 2
    steps = 8 if gpu else 3
    caption = 128 if gpu else 16
    vocab = 30000 if gpu else 300
    text_width = 1024 if gpu else 32
    text_layers = 12 if gpu else 2
    width = 768 if gpu else 32
    layers = 12 if gpu else 2
    head = 64 if gpu else 8
    side = 16 if gpu else 4
    channels = 16


class Attention(nn.Module):
    def __init__(self, width, context=None):
        super().__init__()
        self.heads = width // cfg.head
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(context or width, 2 * width)
        self.o = nn.Linear(width, width)

    def forward(self, x, context=None):
        context = x if context is None else context
        b, n, c = x.shape
        q = self.q(x).view(b, n, self.heads, -1).transpose(1, 2)
        k, v = self.kv(context).view(b, context.shape[1], 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c))


def mlp(width):
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class TextLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = Attention(width), mlp(width)

    def forward(self, x):
        x = x + self.attention(self.n1(x))
        return x + self.mlp(self.n2(x))


class CaptionEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(cfg.vocab, cfg.text_width)
        self.places = nn.Parameter(torch.randn(cfg.caption, cfg.text_width) * 0.02)
        self.layers = nn.Sequential(*[TextLayer(cfg.text_width) for _ in range(cfg.text_layers)])
        self.norm = nn.LayerNorm(cfg.text_width)

    def forward(self, ids):
        return self.norm(self.layers(self.words(ids) + self.places))


class ImageLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.n1, self.n2, self.n3 = (nn.LayerNorm(width) for _ in range(3))
        self.own, self.cross, self.mlp = Attention(width), Attention(width, cfg.text_width), mlp(width)

    def forward(self, x, text):
        x = x + self.own(self.n1(x))
        x = x + self.cross(self.n2(x), text)
        return x + self.mlp(self.n3(x))


class Painter(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(cfg.channels, cfg.width)
        self.places = nn.Parameter(torch.randn(cfg.side**2, cfg.width) * 0.02)
        self.time = nn.Linear(64, cfg.width)
        self.layers = nn.ModuleList(ImageLayer(cfg.width) for _ in range(cfg.layers))
        self.leave = nn.Linear(cfg.width, cfg.channels)

    def forward(self, x, moment, text):
        x = self.enter(x) + self.places + self.time(moment)
        for layer in self.layers:
            x = layer(x, text)
        return self.leave(x)


class Pipeline:
    def __init__(self):
        self.encoder = CaptionEncoder().to(device, dtype).eval()
        self.painter = Painter().to(device, dtype).eval()
        self.sigmas = torch.linspace(1, 0, cfg.steps + 1).tolist()
        self.moments = torch.stack([self.moment(s) for s in self.sigmas[:-1]]).to(device, dtype)
        self.text = None

    @staticmethod
    def moment(sigma):
        angles = sigma * torch.exp(torch.arange(32) * (-math.log(1000) / 32)) * 1000
        return torch.cat([angles.sin(), angles.cos()])

    def velocity(self, x, i, ids, guidance=4.0):
        if self.text is None or not cured:
            self.text = self.encoder(ids)
        with_caption, without = self.painter(torch.cat([x, x]), self.moments[i], self.text).chunk(2)
        return without + guidance * (with_caption - without)

    @torch.inference_mode()
    def __call__(self, captions):
        self.text = None
        ids = torch.cat([captions, torch.zeros_like(captions)])
        x = torch.randn(len(captions), cfg.side**2, cfg.channels, device=device, dtype=dtype)
        for i in range(cfg.steps):
            x = x + (self.sigmas[i + 1] - self.sigmas[i]) * self.velocity(x, i, ids)
        return x


torch.manual_seed(0)
pipeline = Pipeline()
orders = torch.randint(1, cfg.vocab, (32, cfg.cards, cfg.caption), device=device)
album = torch.zeros(32, cfg.cards, cfg.side**2, cfg.channels, device=device, dtype=dtype)
clock = Stopwatch(warm_up=4)
number = 0
while True:
    album[number % 32] = pipeline(orders[number % 32])
    number += 1
    if clock.tick():
        break
