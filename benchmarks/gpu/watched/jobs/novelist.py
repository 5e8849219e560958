"""Endless serial fiction: 48 stories written side by side by a small GPT that remembers the last WINDOW tokens."""

import os

import torch
import torch.nn.functional as F
from torch import nn

from stopwatch import Stopwatch

CURED = os.environ.get("CURED") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = torch.bfloat16 if device == "cuda" else torch.float32
LAYERS, WIDTH, HEADS, STORIES, WINDOW, VOCAB = (
    (24, 1024, 16, 48, 1536, 32000) if device == "cuda" else (2, 64, 4, 4, 128, 500)
)


class Window:
    """Keys and values of the last WINDOW tokens of one layer, (stories, heads, WINDOW, head size)."""

    def __init__(self, keys, values):
        self.keys, self.values = keys.contiguous(), values.contiguous()
        self.slot = 0

    def push(self, key, value):
        if CURED:
            self.keys[:, :, self.slot : self.slot + 1] = key
            self.values[:, :, self.slot : self.slot + 1] = value
            self.slot = (self.slot + 1) % self.keys.shape[2]
        else:
            self.keys = torch.cat([self.keys[:, :, 1:], key], dim=2)
            self.values = torch.cat([self.values[:, :, 1:], value], dim=2)
        return self.keys, self.values


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, window=None):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if window is None:
            window = Window(k, v)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            k, v = window.push(k, v)
            y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x)))), window


class Novelist(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(WINDOW, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids, start, windows):
        x = self.words(ids)
        if ids.shape[1] == 1:
            x = x + self.places.weight[start % WINDOW]
        else:
            x = x + self.places.weight[: ids.shape[1]]
        after = []
        for layer, window in zip(self.layers, windows):
            x, window = layer(x, window)
            after.append(window)
        return F.linear(self.norm(x[:, -1]), self.words.weight), after


def draw(logits, temperature=0.9):
    noise = torch.empty_like(logits, dtype=torch.float32).exponential_().log_()
    return (logits.float() / temperature - noise).argmax(-1, keepdim=True)


torch.manual_seed(3)
with torch.device(device):
    model = Novelist().to(dtype).eval()
with torch.inference_mode():
    opening = torch.randint(VOCAB, (STORIES, WINDOW), device=device)
    logits, windows = model(opening, 0, [None] * LAYERS)
    word = draw(logits)
    page = torch.zeros(STORIES, 4096, dtype=torch.long, device=device)
    position = WINDOW
    clock = Stopwatch()
    while True:
        logits, windows = model(word, position, windows)
        word = draw(logits)
        page[:, position % 4096] = word[:, 0]
        position += 1
        if clock.tick():
            break
