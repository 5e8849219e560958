"""char-level LM trained with a small Muon (orthogonalised momentum) implementation"""

import argparse, json, math, time
import torch
import torch.nn as nn
import torch.nn.functional as F


def newton_schulz(G, steps=5, eps=1e-7):
    a, b, c = 3.4445, -4.7750, 2.0315
    X = G / (G.norm() + eps)
    for _ in range(steps):
        A = X @ X.T
        X = a * X + (b * A + c * A @ A) @ X
    return X


def newton_schulz_wide(G, steps=5, eps=1e-7):
    if G.size(0) > G.size(1):
        return newton_schulz(G.T, steps, eps).T
    return newton_schulz(G, steps, eps)


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95, orthogonalise=newton_schulz):
        super().__init__(params, dict(lr=lr, momentum=momentum))
        self.orthogonalise = orthogonalise

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                buf = self.state[p].setdefault("buf", torch.zeros_like(p))
                buf.lerp_(p.grad, 1 - group["momentum"])
                g = p.grad.lerp(buf, group["momentum"])
                u = self.orthogonalise(g)
                p.add_(u, alpha=-group["lr"] * math.sqrt(max(1, p.size(0) / p.size(1))))


class Layer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.up, self.down = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(F.rms_norm(x, (D,))).view(B, T, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(B, T, D))
        return x + self.down(F.relu(self.up(F.rms_norm(x, (D,)))).square())


class LM(nn.Module):
    def __init__(self, vocab=96, d=128, depth=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.layers = nn.ModuleList([Layer(d, 4) for _ in range(depth)])
        self.out = nn.Linear(d, vocab, bias=False)

    def forward(self, idx):
        x = self.emb(idx)
        for layer in self.layers:
            x = layer(x)
        return self.out(F.rms_norm(x, (x.size(-1),)))


parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=10)
parser.add_argument("--times", type=str)
parser.add_argument("--better", action="store_true")


def main():
    args = parser.parse_args()
    torch.manual_seed(1337)
    text = torch.randint(0, 96, (200_000,))
    model = LM()
    matrices = [p for layer in model.layers for p in layer.parameters()]
    muon = Muon(matrices, orthogonalise=newton_schulz_wide if args.better else newton_schulz)
    adam = torch.optim.AdamW([*model.emb.parameters(), *model.out.parameters()], lr=3e-3)
    B, T = 5, 96
    times = []
    t_start = time.perf_counter()
    while time.perf_counter() - t_start < args.seconds:
        t0 = time.perf_counter()
        at = torch.randint(0, len(text) - T - 1, (B, 1)) + torch.arange(T + 1)
        chunk = text[at]
        loss = F.cross_entropy(model(chunk[:, :-1]).flatten(0, 1), chunk[:, 1:].flatten())
        model.zero_grad(set_to_none=True)
        loss.backward()
        muon.step()
        adam.step()
        times.append(time.perf_counter() - t0)
        if len(times) % 25 == 0:
            print(f"iter {len(times)}: loss {loss.item():.4f}")
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
