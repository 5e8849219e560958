import argparse
import json
import time

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, n, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(self.n2(x))


class LitViT(L.LightningModule):
    def __init__(self, monitor, d=96, depth=4, patch=4, classes=10):
        super().__init__()
        self.embed = nn.Conv2d(3, d, patch, patch)
        self.pos = nn.Parameter(torch.randn(1, (32 // patch) ** 2, d) * 0.02)
        self.blocks = nn.Sequential(*[Block(d, 4) for _ in range(depth)])
        self.head = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, classes))
        self.stats = {}
        if monitor:
            for name, m in self.named_modules():
                if isinstance(m, (nn.Linear, nn.LayerNorm, nn.GELU)):
                    m.register_forward_hook(self.make_hook(name))

    def make_hook(self, name):
        def hook(module, inputs, output):
            o = output.detach().flatten()
            self.stats[name] = {
                "mean": o.mean().item(),
                "std": o.std().item(),
                "dead": (o.abs() < 1e-3).float().mean().item(),
                "median": o.median().item(),
                "hist": torch.histc(o, 50).tolist(),
            }

        return hook

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2) + self.pos
        return self.head(self.blocks(x).mean(1))

    def training_step(self, batch, _):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-4, fused=True)


class Clock(L.Callback):
    def __init__(self, seconds):
        self.seconds, self.times, self.prev = seconds, [], None

    def on_train_batch_end(self, trainer, *_):
        now = time.perf_counter()
        if self.prev is None:
            self.t0 = now
        else:
            self.times.append(now - self.prev)
        self.prev = now
        if now - self.t0 > self.seconds:
            trainer.should_stop = True


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()
    L.seed_everything(0)
    data = TensorDataset(torch.randn(4096, 3, 32, 32), torch.randint(0, 10, (4096,)))
    clock = Clock(args.seconds)
    trainer = L.Trainer(
        max_epochs=1000,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[clock],
    )
    trainer.fit(LitViT(monitor=not args.better), DataLoader(data, batch_size=8, shuffle=True))
    print("steps", len(clock.times))
    if args.times:
        json.dump(clock.times, open(args.times, "w"))
