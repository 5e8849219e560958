"""Greedy transcription with a small encoder/decoder; weights are stored in half precision to save memory."""

import argparse, json, time
import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=6)
parser.add_argument("--times")
parser.add_argument("--better", action="store_true")
args = parser.parse_args()
torch.manual_seed(3)
torch.set_num_threads(1)


class HalfLinear(nn.Module):
    """nn.Linear whose weight lives in float16 and is brought to the type of the activations."""

    def __init__(self, cin, cout):
        super().__init__()
        w = torch.randn(cout, cin) * cin**-0.5
        self.register_buffer("weight", w.half())
        self.register_buffer("bias", torch.zeros(cout).half())

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.h = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = HalfLinear(d, 3 * d), HalfLinear(d, d)
        self.up, self.down = HalfLinear(d, 4 * d), HalfLinear(4 * d, d)

    def forward(self, x, cache):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x)))), (k, v)


class Decoder(nn.Module):
    def __init__(self, vocab=6000, d=512, layers=4, heads=8):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.head = HalfLinear(d, vocab)

    def forward(self, x, cache):
        new = []
        for i, blk in enumerate(self.blocks):
            x, kv = blk(x, cache[i] if cache else None)
            new.append(kv)
        return self.head(x[:, -1]), new


model = Decoder().eval()
if args.better:
    for m in model.modules():
        if isinstance(m, HalfLinear):
            m.float()

times = []
tokens_out = 0
begin = last = time.perf_counter()
with torch.inference_mode():
    while last - begin < args.seconds or len(times) < 24:
        audio = torch.randn(2, 20, 512) * 0.1  # stands for the encoder's output of one utterance
        logits, cache = model(audio, None)
        hyp = []
        for _ in range(6):
            nxt = logits.argmax(-1)
            hyp.append(nxt)
            logits, cache = model(model.emb(nxt)[:, None], cache)
        text = torch.stack(hyp, 1).tolist()
        tokens_out += sum(map(len, text))
        now = time.perf_counter()
        times.append(now - last)
        last = now
print(f"{len(times)} utterance pairs, {tokens_out / (last - begin):.1f} tokens/s")
if args.times:
    json.dump(times, open(args.times, "w"))
