"""Text generation service: prompts are prefilled, then decoded with a preallocated key/value cache."""

import argparse, json, logging, time
import torch
from torch import nn
import torch.nn.functional as F

log = logging.getLogger("stories")


class Layer(nn.Module):
    def __init__(self, d, h, max_len, bs):
        super().__init__()
        self.h, self.n1, self.n2 = h, nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.f1, self.f2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.register_buffer("k", torch.zeros(bs, h, max_len, d // h), persistent=False)
        self.register_buffer("v", torch.zeros(bs, h, max_len, d // h), persistent=False)

    def forward(self, x, pos):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        self.k[:b, :, pos : pos + t] = k
        self.v[:b, :, pos : pos + t] = v
        y = F.scaled_dot_product_attention(
            q, self.k[:b, :, : pos + t], self.v[:b, :, : pos + t], is_causal=pos == 0 and t > 1
        )
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.f2(F.gelu(self.f1(self.n2(x))))


class LM(nn.Module):
    def __init__(self, vocab=4000, d=512, layers=4, max_len=96, bs=32):
        super().__init__()
        self.e, self.p = nn.Embedding(vocab, d), nn.Embedding(max_len, d)
        self.layers = nn.ModuleList(Layer(d, 8, max_len, bs) for _ in range(layers))
        self.head = nn.Linear(d, vocab, bias=False)

    def forward(self, ids, pos):
        x = self.e(ids) + self.p.weight[pos : pos + ids.shape[1]]
        for l in self.layers:
            x = l(x, pos)
        return self.head(x[:, -1])


def log_request(i, out):
    if i % 10 == 0:
        log.info("request %d -> %s", i, out[0, :6].tolist())


@torch.inference_mode()
def generate(model, prompt, n):
    out = prompt.new_empty(len(prompt), n)
    logits, pos = model(prompt, 0), prompt.shape[1]
    for j in range(n):
        out[:, j] = logits.argmax(-1)
        if j + 1 < n:
            logits = model(out[:, j : j + 1], pos)
            pos += 1
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = LM().eval()
    generate(model, torch.randint(0, 4000, (32, 16)), 4)  # warm the cache
    t, i = [time.perf_counter()], 0
    while t[-1] - t[0] < a.seconds or i < 24:
        out = generate(model, torch.randint(0, 4000, (32, 16)), 6)
        log_request(i, out)
        i += 1
        t.append(time.perf_counter())
    print("%.0f tokens/s" % (i * 32 * 6 / (t[-1] - t[0])))
    if a.times:
        json.dump([y - x for x, y in zip(t, t[1:])], open(a.times, "w"))


if __name__ == "__main__":
    main()
