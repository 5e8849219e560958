import argparse, json, math, tempfile, time
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator


class CausalBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))


class CharLM(nn.Module):
    def __init__(self, vocab=96, d=256, depth=6, heads=8, ctx=64):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Parameter(torch.zeros(ctx, d))
        self.blocks = nn.Sequential(*[CausalBlock(d, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab)

    def forward(self, x):
        h = self.tok(x) + self.pos[: x.size(1)]
        return self.head(self.norm(self.blocks(h)))


def get_batch(text, ctx, bs):
    ix = torch.randint(len(text) - ctx - 1, (bs, 1))
    window = text[ix + torch.arange(ctx + 1)]
    return window[:, :-1], window[:, 1:]


def run(args):
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(1337)
    text = torch.randint(0, 96, (500_000,))
    model = CharLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    sched = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 100))
    model, optimizer, sched = accelerator.prepare(model, optimizer, sched)

    save_every = 500 if args.better else 2
    times = []
    with tempfile.TemporaryDirectory(prefix="charlm_") as ckpt:
        t0 = time.perf_counter()
        step = 0
        while True:
            tic = time.perf_counter()
            x, y = get_batch(text, 64, 4)
            logits = model(x)
            loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            sched.step()
            step += 1
            if step % save_every == 0:
                accelerator.save_state(ckpt)
            if step % 25 == 0:
                accelerator.print(f"step {step} loss {loss.item():.3f} ppl {math.exp(loss.item()):.1f}")
            toc = time.perf_counter()
            times.append(toc - tic)
            if toc - t0 > args.seconds:
                break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times", default=None)
    run(ap.parse_args())
