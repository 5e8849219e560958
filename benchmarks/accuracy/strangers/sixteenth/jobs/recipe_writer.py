"""Recipe generation service: a small decoder writes several recipes at a time, each ending at its own END token."""

import argparse, json, time
import torch
import torch.nn as nn
import torch.nn.functional as F

END, START = 1, 2


class Layer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.h = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x, store, at):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        store[0][:, :, at : at + t], store[1][:, :, at : at + t] = k, v
        y = F.scaled_dot_product_attention(q, store[0][:, :, : at + t], store[1][:, :, : at + t], is_causal=t > 1)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Writer(nn.Module):
    def __init__(self, vocab=4000, d=256, layers=4, heads=4, longest=64):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(longest, d)
        self.layers = nn.ModuleList(Layer(d, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab)
        self.longest, self.heads, self.d = longest, heads, d

    def stores(self, b):
        shape = (2, b, self.heads, self.longest, self.d // self.heads)
        return [torch.empty(shape) for _ in self.layers]

    def step(self, ids, stores, at):
        x = self.tok(ids) + self.pos(torch.arange(at, at + ids.shape[1]))
        for layer, store in zip(self.layers, stores):
            x = layer(x, store, at)
        return self.head(self.norm(x[:, -1]))


def end_bias(at):
    """The longer the recipe the likelier its end (fitted on the archive)."""
    return 0.32 * (at - 10)


@torch.inference_mode()
def write(model, prompts, g, watch_end=False):
    b, n = prompts.shape
    stores = model.stores(b)
    out = torch.full((b, model.longest), END)
    out[:, :n] = prompts
    ended = torch.zeros(b, dtype=torch.bool)
    ids = prompts
    at = 0
    while at + ids.shape[1] < model.longest:
        logits = model.step(ids, stores, at)
        at += ids.shape[1]
        logits[:, END] += end_bias(at)
        new = torch.multinomial(logits.softmax(-1), 1, generator=g)
        new[ended] = END
        ended |= new[:, 0] == END
        out[:, at : at + 1] = new
        ids = new
        if watch_end and ended.all():
            break
    return [row[: (row == END).nonzero()[0, 0]] if (row == END).any() else row for row in out]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(31)
    model = Writer().eval()
    g = torch.Generator().manual_seed(5)
    times, words = [], 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        prompts = torch.cat([torch.full((4, 1), START), torch.randint(3, 4000, (4, 7), generator=g)], 1)
        t = time.perf_counter()
        words += sum(len(r) for r in write(model, prompts, g, args.better))
        times.append(time.perf_counter() - t)
    print(f"{len(times)} requests, mean length {words / len(times) / 4:.1f}")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
