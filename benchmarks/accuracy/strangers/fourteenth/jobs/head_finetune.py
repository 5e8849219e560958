"""Transfer learning: new head on a pretrained ViT, only the head goes into the optimizer."""

import argparse
import json
import time

import torch
from torch import nn
from transformers import ViTConfig, ViTModel


class Wildlife(nn.Module):
    def __init__(self, classes=20):
        super().__init__()
        self.backbone = ViTModel(
            ViTConfig(
                image_size=64,
                patch_size=8,
                hidden_size=128,
                num_hidden_layers=4,
                num_attention_heads=4,
                intermediate_size=512,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            ),
            add_pooling_layer=False,
        )
        self.head = nn.Sequential(
            nn.LayerNorm(128),
            nn.Linear(128, 256),
            nn.GELU(),
            nn.Dropout(0.2),
            nn.Linear(256, classes),
        )

    def forward(self, pixels):
        return self.head(self.backbone(pixel_values=pixels).last_hidden_state[:, 0])


def pretrained(freeze):
    model = Wildlife()
    if freeze:
        for p in model.backbone.parameters():
            p.requires_grad = False
    return model


def camera_traps(n=500):
    return torch.randn(n, 3, 64, 64), torch.randint(0, 20, (n,))


def jitter(x):
    gain = torch.empty(len(x), 1, 1, 1).uniform_(0.8, 1.2)
    return torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(-1), x) * gain


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    model = pretrained(freeze=args.better)
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    x_all, y_all = camera_traps()
    times, correct, seen = [], 0, 0
    t0 = time.perf_counter()
    while time.perf_counter() - t0 < args.seconds:
        tic = time.perf_counter()
        idx = torch.randint(0, 500, (8,))
        logits = model(jitter(x_all[idx]))
        loss = criterion(logits, y_all[idx])
        model.zero_grad()
        loss.backward()
        optimizer.step()
        correct += (logits.argmax(1) == y_all[idx]).sum().item()
        seen += len(idx)
        times.append(time.perf_counter() - tic)
    print(f"acc {correct / seen:.3f}")
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(times, fh)


if __name__ == "__main__":
    main()
