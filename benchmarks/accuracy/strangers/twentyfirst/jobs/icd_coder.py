"""Writes diagnosis codes for discharge letters.

A seq2seq model reads the letter; the decoder may only continue with pieces that lead
to a code of the catalogue (prefix_allowed_tokens_fn of generate).
"""

import argparse
import json
import time

import torch
from transformers import BartConfig, BartForConditionalGeneration

VOCAB, PAD, BOS, EOS = 6000, 1, 0, 2
CODES, CODE_LEN = 9000, 5
LETTERS = 6


def load_model():
    torch.manual_seed(0)
    cfg = BartConfig(
        vocab_size=VOCAB,
        d_model=192,
        encoder_layers=3,
        decoder_layers=2,
        encoder_ffn_dim=768,
        decoder_ffn_dim=768,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        max_position_embeddings=256,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=EOS,
        forced_eos_token_id=None,
    )
    return BartForConditionalGeneration(cfg).eval()


def catalogue():
    g = torch.Generator().manual_seed(2)
    chapters = torch.randint(10, 60, (CODES, 1), generator=g)
    rest = torch.randint(10, 400, (CODES, CODE_LEN - 1), generator=g)
    return sorted(set(map(tuple, torch.cat([chapters, rest], 1).tolist())))


class Catalogue:
    def __init__(self, codes):
        self.codes = codes

    def __call__(self, batch_id, prefix):
        done = tuple(prefix.tolist()[1:])
        n = len(done)
        nxt = {c[n] for c in self.codes if len(c) > n and c[:n] == done}
        return sorted(nxt) or [EOS]


class Trie:
    def __init__(self, codes):
        self.root = {}
        for code in codes:
            node = self.root
            for piece in code:
                node = node.setdefault(piece, {})

    def __call__(self, batch_id, prefix):
        node = self.root
        for piece in prefix.tolist()[1:]:
            node = node.get(piece, {})
        return sorted(node) or [EOS]


class Coder:
    def __init__(self, model, allowed):
        self.model, self.allowed = model, allowed

    @torch.inference_mode()
    def code(self, ids, mask):
        out = self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            num_beams=3,
            do_sample=False,
            max_new_tokens=CODE_LEN + 1,
            prefix_allowed_tokens_fn=self.allowed,
        )
        return [tuple(t for t in row.tolist()[1:] if t not in (PAD, EOS)) for row in out]


def letters(n=40):
    g = torch.Generator().manual_seed(12)
    out = []
    for _ in range(n):
        lengths = torch.randint(120, 200, (LETTERS,), generator=g)
        mask = (torch.arange(int(lengths.max()))[None] < lengths[:, None]).long()
        ids = torch.randint(10, VOCAB, mask.shape, generator=g)
        out.append((torch.where(mask == 1, ids, PAD), mask))
    return out


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    args = p.parse_args()

    codes = catalogue()
    known = set(codes)
    coder = Coder(load_model(), Trie(codes) if args.better else Catalogue(codes))
    work = letters()

    times, valid = [], 0
    end = time.perf_counter() + args.seconds
    while time.perf_counter() < end:
        t0 = time.perf_counter()
        found = coder.code(*work[len(times) % len(work)])
        times.append(time.perf_counter() - t0)
        valid += sum(c in known for c in found)
        if len(times) % 20 == 0:
            print(f"batch {len(times)}: {valid} codes, last {found[-1]}")

    print(f"{len(times)} batches, mean {1e3 * sum(times) / len(times):.1f} ms, {valid} codes")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
