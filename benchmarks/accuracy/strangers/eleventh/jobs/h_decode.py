"""Story continuation demo: one reader at a time, one token at a time."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, DIM, HEADS, LAYERS, MAX_LEN = 16000, 512, 8, 5, 160
EOS = 2


class KVCache:
    def __init__(self):
        shape = (1, HEADS, MAX_LEN, DIM // HEADS)
        self.k, self.v = torch.zeros(shape), torch.zeros(shape)
        self.n = 0

    def append(self, k, v):
        t = k.shape[2]
        self.k[:, :, self.n : self.n + t] = k
        self.v[:, :, self.n : self.n + t] = v
        self.n += t
        return self.k[:, :, : self.n], self.v[:, :, : self.n]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.out = nn.Linear(DIM, DIM)
        self.fc1, self.fc2 = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x, cache):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        k, v = cache.append(k, v)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, DIM))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class StoryModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(MAX_LEN, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids, caches):
        start = caches[0].n
        x = self.tok(ids) + self.pos.weight[start : start + ids.shape[1]]
        for block, cache in zip(self.blocks, caches):
            x = block(x, cache)
        return self.head(self.ln(x[:, -1]))


@torch.no_grad()
def continue_story(model, prompt, caches, new_tokens=8, temperature=0.9, top_k=40, penalty=1.2):
    for cache in caches:
        cache.n = 0
    history = list(prompt)
    ids = torch.tensor([prompt])
    for _ in range(new_tokens):
        logits = model(ids, caches)[0] / temperature
        seen = torch.tensor(sorted(set(history)))
        picked = logits[seen]
        logits[seen] = torch.where(picked > 0, picked / penalty, picked * penalty)
        value, index = logits.topk(top_k)
        probs = torch.softmax(value, dim=0)
        token = index[torch.multinomial(probs, 1)].item()
        if token == EOS:
            break
        history.append(token)
        ids = torch.tensor([[token]])
    return history[len(prompt) :]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=16)
    args = ap.parse_args()
    torch.manual_seed(8)
    model = StoryModel().eval()
    caches = [KVCache() for _ in range(LAYERS)]
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        prompt = torch.randint(3, VOCAB, (48,)).tolist()
        t0 = time.perf_counter()
        text = continue_story(model, prompt, caches)
        times.append(time.perf_counter() - t0)
        if len(times) % 50 == 0:
            print(f"story {len(times)}: {text}", flush=True)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
