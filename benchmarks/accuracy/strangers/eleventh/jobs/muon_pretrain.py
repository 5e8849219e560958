# nanoGPT-like pretraining with Muon for the hidden matrices and AdamW for the rest
import argparse, json, time
import torch
from torch import nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--better", action="store_true")
ap.add_argument("--times", default=None)
ap.add_argument("--seconds", type=float, default=16.0)
args = ap.parse_args()

torch.manual_seed(0)
D, H, L, V, T, B = 128, 4, 3, 1024, 96, 6


def newton_schulz(G, steps=5, eps=1e-7):
    """Quintic iteration towards the nearest semi-orthogonal matrix."""
    a, b, c = 3.4445, -4.7750, 2.0315
    X = G / (G.norm() + eps)
    flip = args.better and X.size(0) > X.size(1)
    if flip:
        X = X.T
    for _ in range(steps):
        A = X @ X.T
        Bm = b * A + c * A @ A
        X = a * X + Bm @ X
    return X.T if flip else X


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95, nesterov=True):
        super().__init__(params, dict(lr=lr, momentum=momentum, nesterov=nesterov))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            mu = group["momentum"]
            for p in group["params"]:
                state = self.state[p]
                if "buf" not in state:
                    state["buf"] = torch.zeros_like(p)
                buf = state["buf"].lerp_(p.grad, 1 - mu)
                upd = p.grad.lerp(buf, mu) if group["nesterov"] else buf
                scale = max(1.0, p.size(0) / p.size(1)) ** 0.5
                p.add_(newton_schulz(upd), alpha=-group["lr"] * scale)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(D), nn.RMSNorm(D)
        self.qkv = nn.Linear(D, 3 * D, bias=False)
        self.out = nn.Linear(D, D, bias=False)
        self.fc = nn.Linear(D, 4 * D, bias=False)
        self.proj = nn.Linear(4 * D, D, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, H, D // H).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, D))
        return x + self.proj(F.relu(self.fc(self.n2(x))).square())


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(V, D)
        self.wpe = nn.Embedding(T, D)
        self.h = nn.ModuleList([Layer() for _ in range(L)])
        self.ln_f = nn.RMSNorm(D)
        self.head = nn.Linear(D, V, bias=False)
        self.register_buffer("positions", torch.arange(T))

    def forward(self, idx, tgt):
        x = self.wte(idx) + self.wpe(self.positions)
        for layer in self.h:
            x = layer(x)
        logits = self.head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, V), tgt.reshape(-1))


model = GPT()
hidden = [p for p in model.h.parameters() if p.ndim == 2]
others = [p for n, p in model.named_parameters() if p.ndim < 2 or not n.startswith("h.")]
opts = [Muon(hidden), torch.optim.AdamW(others, lr=3e-3, betas=(0.8, 0.95), fused=True)]
base_lrs = [g["lr"] for o in opts for g in o.param_groups]

data = torch.randint(V, (200_000,))
window = torch.arange(T + 1)
times = []
start = time.perf_counter()
step = 0
while time.perf_counter() - start < args.seconds:
    tic = time.perf_counter()
    warm = min(1.0, (step + 1) / 50)
    for g, lr in zip((g for o in opts for g in o.param_groups), base_lrs):
        g["lr"] = lr * warm
    block = data[torch.randint(len(data) - T - 1, (B, 1)) + window]
    loss = model(block[:, :-1], block[:, 1:])
    loss.backward()
    for o in opts:
        o.step()
    model.zero_grad(set_to_none=True)
    step += 1
    times.append(time.perf_counter() - tic)
    if step % 40 == 0:
        print(f"step {step} train loss {loss.item():.4f}", flush=True)

if args.times:
    json.dump(times, open(args.times, "w"))
