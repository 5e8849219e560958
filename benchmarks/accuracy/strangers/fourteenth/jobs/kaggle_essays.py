# Kaggle: essay scoring, single-file version of the notebook
import argparse
import gc
import json
import time

import numpy as np
import torch
import torch.nn as nn
from transformers import DebertaV2Config, DebertaV2Model


class CFG:
    hidden = 96
    layers = 2
    max_len = 64
    batch_size = 24
    lr = 2e-4
    n_essays = 1500
    seed = 2024


def seed_everything(seed):
    np.random.seed(seed)
    torch.manual_seed(seed)


class MeanPooling(nn.Module):
    def forward(self, h, mask):
        m = mask.unsqueeze(-1).float()
        return (h * m).sum(1) / m.sum(1).clamp(min=1e-9)


class EssayModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = DebertaV2Model(
            DebertaV2Config(
                vocab_size=4000,
                hidden_size=CFG.hidden,
                num_hidden_layers=CFG.layers,
                num_attention_heads=4,
                intermediate_size=4 * CFG.hidden,
                max_position_embeddings=CFG.max_len,
            )
        )
        self.pool = MeanPooling()
        self.fc = nn.Linear(CFG.hidden, 1)

    def forward(self, ids, mask):
        h = self.backbone(input_ids=ids, attention_mask=mask).last_hidden_state
        return self.fc(self.pool(h, mask)).squeeze(-1)


def make_essays():
    essays = []
    for _ in range(CFG.n_essays):
        essays.append(
            {
                "tokens": np.random.randint(5, 4000, CFG.max_len).tolist(),
                "len": np.random.randint(30, 65),
                "score": float(np.random.rand()),
            }
        )
    return essays


def collate(rows):
    ids = torch.tensor([r["tokens"] for r in rows])
    lens = torch.tensor([r["len"] for r in rows])
    mask = (torch.arange(CFG.max_len)[None] < lens[:, None]).long()
    return ids * mask, mask, torch.tensor([r["score"] for r in rows])


def train_fn(essays, model, optimizer, args):
    times = []
    begin = time.time()
    step = 0
    while time.time() - begin < args.seconds:
        t0 = time.time()
        rows = [essays[i] for i in np.random.randint(0, len(essays), CFG.batch_size)]
        ids, mask, target = collate(rows)
        pred = model(ids, mask)
        loss = nn.functional.mse_loss(pred, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}")
        del ids, mask, target, pred
        if not args.better or step % 500 == 0:
            gc.collect()
        times.append(time.time() - t0)
    return times


parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=20)
parser.add_argument("--better", action="store_true")
parser.add_argument("--times")
args = parser.parse_args()
seed_everything(CFG.seed)
essays = make_essays()
model = EssayModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=CFG.lr, weight_decay=0.01)
times = train_fn(essays, model, optimizer, args)
if args.times:
    with open(args.times, "w") as f:
        json.dump(times, f)
