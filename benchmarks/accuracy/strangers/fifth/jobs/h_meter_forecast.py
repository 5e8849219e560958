"""Smart meter forecasting, small causal transformer, validation at the end of the run."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

CONTEXT, PATCH, DIM, HEADS = 1024, 16, 256, 4


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.o = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, DIM))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class PatchModel(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.inp = nn.Linear(PATCH, DIM)
        self.pos = nn.Parameter(torch.zeros(CONTEXT // PATCH, DIM))
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm = nn.LayerNorm(DIM)
        self.out = nn.Linear(DIM, PATCH)

    def forward(self, x):
        x = x.unflatten(1, (-1, PATCH))
        h = self.inp(x) + self.pos
        for l in self.layers:
            h = l(h)
        return self.out(self.norm(h))


class Meters:
    def __init__(self, n=64, days=200):
        t = torch.arange(days * 24).float()
        self.x = torch.sin(t / 24 * 6.2832) + 0.2 * torch.sin(t / 168 * 6.2832) + 0.1 * torch.randn(n, days * 24)
        self.windows = self.x.unfold(1, CONTEXT + PATCH, 8)

    def batch(self, size):
        i = torch.randint(0, self.windows.shape[0] - 8, (size,))
        j = torch.randint(0, self.windows.shape[1], (size,))
        return self.windows[i, j]

    def held_out(self):
        return self.windows[-8:, ::200].flatten(0, 1)[:16]


def loss_on(model, w):
    pred = model(w[:, :CONTEXT])
    target = w[:, PATCH:].unflatten(1, (-1, PATCH))
    return F.mse_loss(pred, target)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times", default=None)
    args = ap.parse_args()

    torch.manual_seed(0)
    data, model = Meters(), PatchModel()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=1e-3, total_steps=100_000)
    times, history = [], []
    t0 = last = time.perf_counter()
    while True:
        loss = loss_on(model, data.batch(12))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        history.append(loss.item())
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if len(times) % 10 == 0:
            print(
                f"step {len(times):5d} mse {sum(history[-10:]) / 10:.4f} |g| {norm:.3f} lr {sched.get_last_lr()[0]:.2e}"
            )
        if now - t0 > args.seconds:
            break

    model.eval()
    with torch.inference_mode():
        print("held-out mse %.4f" % loss_on(model, data.held_out()).item())
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
