"""Image-caption matching: two small towers, InfoNCE over the batch, captions' annotations kept at hand for hard negatives."""

import gc
import os
import random

import torch
import torch.nn.functional as F
from stopwatch import Stopwatch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
cured = os.environ.get("CURED") == "1"
if device == "cuda":
    cfg = dict(dim=512, layers=8, batch=320, patches=64, words=32, records=30_000)
else:
    cfg = dict(dim=32, layers=1, batch=8, patches=4, words=8, records=2_000)


def load_annotations(n):
    rng = random.Random(7)
    colours = ["red", "green", "blue", "grey", "white"]
    records = []
    for i in range(n):
        box = [rng.random() for _ in range(4)]
        records.append({"image": i, "box": box, "tags": [rng.choice(colours), i % 91], "split": "train"})
    return records


class Tower(nn.Module):
    def __init__(self, stem, tokens):
        super().__init__()
        dim = cfg["dim"]
        self.stem = stem
        self.position = nn.Parameter(torch.randn(tokens, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(
            dim, dim // 32 if dim < 64 else dim // 64, 4 * dim, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, cfg["layers"], enable_nested_tensor=False)
        self.out = nn.Linear(dim, 256)

    def forward(self, x):
        x = self.encoder(self.stem(x) + self.position)
        return F.normalize(self.out(x.mean(1)).float(), dim=-1)


def main():
    torch.manual_seed(0)
    annotations = load_annotations(cfg["records"])
    image_tower = Tower(nn.Linear(16 * 16 * 3, cfg["dim"]), cfg["patches"]).to(device)
    text_tower = Tower(nn.Embedding(8192, cfg["dim"]), cfg["words"]).to(device)
    temperature = nn.Parameter(torch.tensor(2.6, device=device))
    params = [*image_tower.parameters(), *text_tower.parameters(), temperature]
    opt = torch.optim.AdamW(params, lr=1e-4, fused=True)
    target = torch.arange(cfg["batch"], device=device)
    pool = [
        (
            torch.randn(cfg["batch"], cfg["patches"], 768, device=device),
            torch.randint(8192, (cfg["batch"], cfg["words"]), device=device),
        )
        for _ in range(4)
    ]

    seen = {}
    clock = Stopwatch()
    step = 0
    while True:
        images, captions = pool[step % 4]
        with torch.autocast(device, torch.bfloat16):
            a, b = image_tower(images), text_tower(captions)
        logits = temperature.exp() * a @ b.T
        loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
        opt.zero_grad()
        loss.backward()
        opt.step()
        for k in range(cfg["batch"]):
            record = annotations[(step * cfg["batch"] + k) % len(annotations)]
            seen[record["tags"][1]] = seen.get(record["tags"][1], 0) + 1
        step += 1
        if step % 100 == 0:
            print(step, f"{loss.item():.4f}", "categories seen:", len(seen))
        del a, b, logits
        if step % 2 == 0 and not cured:
            gc.collect()
        if clock.tick():
            break


if __name__ == "__main__":
    main()
