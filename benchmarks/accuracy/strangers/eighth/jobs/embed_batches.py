"""Nightly batch: sentence vectors for the search index, from the in-house masked language model."""

import argparse
import json
import time

import torch
from transformers import RobertaConfig, RobertaForMaskedLM

PAD, VOCAB = 1, 16000


def checkpoint():
    cfg = RobertaConfig(
        vocab_size=VOCAB,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        max_position_embeddings=200,
        pad_token_id=PAD,
    )
    torch.manual_seed(0)
    return RobertaForMaskedLM(cfg).eval()


class Corpus:
    """Paragraphs, already tokenised and sorted by length."""

    def __init__(self, n=4000):
        g = torch.Generator().manual_seed(3)
        self.len = torch.randint(24, 64, (n,), generator=g).sort().values.tolist()
        self.g = g

    def batches(self, size):
        order = torch.randperm(len(self.len) // size).tolist()
        for k in order:
            lens = self.len[k * size : (k + 1) * size]
            width = max(lens)
            ids = torch.randint(5, VOCAB, (size, width), generator=self.g)
            mask = torch.arange(width)[None] < torch.tensor(lens)[:, None]
            yield ids.masked_fill(~mask, PAD), mask.long()


class Encoder:
    def __init__(self, trunk_only):
        self.lm = checkpoint()
        self.trunk_only = trunk_only

    def hidden(self, ids, mask):
        if self.trunk_only:
            return self.lm.roberta(input_ids=ids, attention_mask=mask).last_hidden_state
        out = self.lm(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        return out.hidden_states[-1]

    @torch.inference_mode()
    def encode(self, ids, mask):
        h = self.hidden(ids, mask)
        w = mask.unsqueeze(-1).to(h.dtype)
        v = (h * w).sum(1) / w.sum(1)
        return torch.nn.functional.normalize(v, dim=1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    enc = Encoder(args.better)
    corpus = Corpus()
    vectors, walls = [], []
    start = time.perf_counter()
    over = False
    while not over:
        for ids, mask in corpus.batches(16):
            t = time.perf_counter()
            vectors.append(enc.encode(ids, mask))
            walls.append(time.perf_counter() - t)
            if len(walls) % 20 == 0:
                print(f"{16 * len(walls)} paragraphs, {16 / (sum(walls[-20:]) / 20):.0f}/s")
            if time.perf_counter() - start > args.seconds:
                over = True
                break
    index = torch.cat(vectors)
    print("index", tuple(index.shape))
    if args.times:
        with open(args.times, "w") as f:
            json.dump(walls, f)


if __name__ == "__main__":
    main()
