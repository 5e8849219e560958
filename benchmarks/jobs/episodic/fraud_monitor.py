"""Card-fraud classifier; tracks validation AUC while training and keeps the best weights."""

import argparse
import copy
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class FraudNet(nn.Module):
    def __init__(self, features=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.BatchNorm1d(features),
            nn.Linear(features, 256),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(256, 256),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(256, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


def auc(scores, labels):
    rank = torch.empty_like(scores)
    rank[scores.argsort()] = torch.arange(1, len(scores) + 1, dtype=scores.dtype)
    pos = labels > 0
    n_pos, n_neg = pos.sum(), (~pos).sum()
    return float((rank[pos].sum() - n_pos * (n_pos + 1) / 2) / (n_pos * n_neg))


@torch.no_grad()
def validate(model, x, y, batch=4096):
    model.eval()
    scores = torch.cat([model(part) for part in x.split(batch)])
    model.train()
    return auc(scores, y)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()

    torch.manual_seed(0)
    x = torch.randn(60_000, 64)
    y = (x[:, :4].sum(1) + torch.randn(60_000) > 5).float()
    train_x, train_y, val_x, val_y = x[:44_000], y[:44_000], x[44_000:], y[44_000:]
    model = FraudNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    validate_every = 200 if args.better else 5
    best_auc, best_state = 0.0, None

    times = []
    step = 0
    last = time.perf_counter()
    stop = last + args.seconds
    while last < stop:
        idx = torch.randint(0, len(train_x), (512,))
        loss = F.binary_cross_entropy_with_logits(model(train_x[idx]), train_y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % validate_every == 0:
            score = validate(model, val_x, val_y)
            if score > best_auc:
                best_auc = score
                best_state = copy.deepcopy(model.state_dict())
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print(f"{step} steps, best val auc {best_auc:.4f}, kept {best_state is not None}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
