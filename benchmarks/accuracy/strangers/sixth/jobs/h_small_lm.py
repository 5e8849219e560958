import argparse, json, os, tempfile, time
import torch
import torch.nn as nn
import torch.nn.functional as F


class Layer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.h, -1).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.n2(x))


class LM(nn.Module):
    def __init__(self, vocab=512, d=256, depth=4, ctx=96):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(ctx, d)
        self.layers = nn.Sequential(*[Layer(d, 8) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)
        self.register_buffer("positions", torch.arange(ctx))

    def forward(self, x):
        return self.head(self.norm(self.layers(self.tok(x) + self.pos(self.positions[: x.size(1)]))))


def batch(data, gen, n=12, ctx=96):
    i = torch.randint(0, len(data) - ctx - 1, (n, 1), generator=gen)
    w = data[i + torch.arange(ctx + 1)]
    return w[:, :-1], w[:, 1:]


def lm_loss(model, x, y):
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


@torch.inference_mode()
def evaluate(model, data, gen, rounds=5):
    model.eval()
    total = sum(lm_loss(model, *batch(data, gen)).item() for _ in range(rounds))
    model.train()
    return total / rounds


def main(args):
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(1)
    data = torch.randint(0, 512, (200_000,), generator=gen)
    train, valid = data[:180_000], data[180_000:]
    model = LM()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    times = []
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        while time.perf_counter() - begin < args.seconds:
            t = time.perf_counter()
            loss = lm_loss(model, *batch(train, gen))
            opt.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            if len(times) % 150 == 149:
                torch.save(model.state_dict(), os.path.join(folder, "last.pt"))
            times.append(time.perf_counter() - t)
            if len(times) % 5 == 0:
                print(f"step {len(times)} loss {loss.item():.3f} norm {norm.item():.2f}")
        print("valid", evaluate(model, valid, gen))
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    main(ap.parse_args())
