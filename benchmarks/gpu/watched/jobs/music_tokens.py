"""A deep, narrow transformer over MIDI tokens, with decoupled weight decay and an average of the weights for sampling."""

import copy
import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from stopwatch import Stopwatch

dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CURED = os.environ.get("CURED") == "1"
if dev.type == "cuda":
    D, L, H, VOCAB, B, T = 512, 32, 8, 1024, 20, 512
else:
    D, L, H, VOCAB, B, T = 32, 3, 2, 64, 2, 16

BETA1, BETA2, EPS, DECAY, KEEP = 0.9, 0.98, 1e-8, 0.05, 0.999


class AdamW(torch.optim.Optimizer):
    """Decoupled weight decay as in the paper (arXiv:1711.05101), nothing hidden."""

    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lr = group["lr"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["t"] = 0
                    state["m"] = torch.zeros_like(p)
                    state["v"] = torch.zeros_like(p)
                state["t"] += 1
                m, v, t = state["m"], state["v"], state["t"]
                p.mul_(1 - lr * DECAY)
                m.mul_(BETA1).add_(p.grad, alpha=1 - BETA1)
                v.mul_(BETA2).addcmul_(p.grad, p.grad, value=1 - BETA2)
                root = v.sqrt().div_(math.sqrt(1 - BETA2**t)).add_(EPS)
                p.addcdiv_(m, root, value=-lr / (1 - BETA1**t))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.na, self.nm = nn.LayerNorm(D), nn.LayerNorm(D)
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        h = self.na(x)
        q, k, v = (f(h).view(*h.shape[:2], H, D // H).transpose(1, 2) for f in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.o(a)
        return x + self.down(F.gelu(self.up(self.nm(x))))


class MusicModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, D)
        self.pos = nn.Parameter(torch.randn(T, D) * 0.01)
        self.blocks = nn.Sequential(*[Block() for _ in range(L)])
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, VOCAB, bias=False)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.emb(x) + self.pos)))


torch.manual_seed(5)
model = MusicModel().to(dev)
average = copy.deepcopy(model).requires_grad_(False)
weights, averages = list(model.parameters()), list(average.parameters())
if CURED:
    opt = torch.optim.AdamW(weights, lr=3e-4, betas=(BETA1, BETA2), eps=EPS, weight_decay=DECAY, fused=True)
else:
    opt = AdamW(weights, lr=3e-4)


@torch.no_grad()
def update_average():
    if CURED:
        torch._foreach_lerp_(averages, weights, 1 - KEEP)
    else:
        for slow, fast in zip(averages, weights):
            slow.mul_(KEEP).add_(fast, alpha=1 - KEEP)


pieces = torch.randint(VOCAB, (16, B, T + 1), device=dev)
clock = Stopwatch()
i = 0
while True:
    piece = pieces[i % 16]
    with torch.autocast(dev.type, torch.bfloat16):
        out = model(piece[:, :-1])
        loss = F.cross_entropy(out.flatten(0, 1), piece[:, 1:].flatten())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    update_average()
    i += 1
    if i % 50 == 0:
        print(i, round(loss.item(), 3))
    if clock.tick():
        break
