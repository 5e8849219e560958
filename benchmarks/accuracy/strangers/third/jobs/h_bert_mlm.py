"""Masked language modelling from scratch with a small BERT; evaluation after training."""

import argparse
import json
import time

import torch
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm
from transformers import BertConfig, BertForMaskedLM, get_linear_schedule_with_warmup

VOCAB, SEQ, MASK = 2500, 64, 4


class Corpus(Dataset):
    def __init__(self, n=3000, seed=0):
        g = torch.Generator().manual_seed(seed)
        base = torch.randint(5, VOCAB, (n, 1), generator=g)
        walk = torch.randint(-3, 4, (n, SEQ), generator=g).cumsum(1)
        self.ids = (base + walk).clamp(5, VOCAB - 1)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return self.ids[i]


def mask_tokens(batch):
    ids = torch.stack(batch)
    labels = ids.clone()
    picked = torch.rand(ids.shape) < 0.15
    labels[~picked] = -100
    ids[picked & (torch.rand(ids.shape) < 0.8)] = MASK
    return {"input_ids": ids, "labels": labels}


@torch.no_grad()
def evaluate(model, loader, max_batches=5):
    model.eval()
    losses = [model(**b).loss.item() for _, b in zip(range(max_batches), loader)]
    model.train()
    return sum(losses) / len(losses)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(0)
    cfg = BertConfig(
        vocab_size=VOCAB,
        hidden_size=160,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=640,
        max_position_embeddings=SEQ,
    )
    model = BertForMaskedLM(cfg).train()
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01, fused=True)
    sched = get_linear_schedule_with_warmup(opt, 50, 10_000)
    loader = DataLoader(Corpus(), batch_size=8, shuffle=True, collate_fn=mask_tokens)
    times, t_begin, avg = [], time.perf_counter(), None
    bar = tqdm(mininterval=1.0)
    while time.perf_counter() - t_begin < args.seconds:
        tick = time.perf_counter()
        for batch in loader:
            loss = model(**batch).loss
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
            opt.step()
            sched.step()
            opt.zero_grad(set_to_none=True)
            value = loss.item()
            avg = value if avg is None else 0.95 * avg + 0.05 * value
            bar.update()
            bar.set_postfix(loss=f"{avg:.3f}", norm=f"{norm:.2f}", refresh=False)
            tock = time.perf_counter()
            times.append(tock - tick)
            tick = tock
            if tock - t_begin > args.seconds:
                break
    bar.close()
    print("eval loss", evaluate(model, DataLoader(Corpus(200, 1), batch_size=16, collate_fn=mask_tokens)))
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
