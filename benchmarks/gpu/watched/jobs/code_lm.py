"""Decoder-only model for source code: rotary positions, RMS norm, SwiGLU; compiled, bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from stopwatch import Stopwatch

torch.set_float32_matmul_precision("high")
device = "cuda" if torch.cuda.is_available() else "cpu"
big = device == "cuda"
VOCAB, DIM, LAYERS, HEADS, FF, T, B = (32768, 1024, 10, 8, 2816, 1024, 16) if big else (256, 64, 2, 2, 128, 32, 2)


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.gate_up, self.down = nn.Linear(DIM, 2 * FF, bias=False), nn.Linear(FF, DIM, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, DIM))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class CodeLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)
        half = DIM // HEADS // 2
        angle = torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(half) / half)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, ids, targets):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.loss(x, targets)

    def loss(self, x, targets):
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def main():
    torch.manual_seed(0)
    model = CodeLM().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    if big:
        for layer in model.layers:
            layer.compile()
        model.loss = torch.compile(model.loss)
    tokens = torch.randint(VOCAB, (64, B, T + 1))
    if big:
        tokens = tokens.pin_memory()

    def step(i):
        block = tokens[i % len(tokens)].to(device, non_blocking=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(block[:, :-1], block[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    for i in range(2):
        step(i)
    clock = Stopwatch()
    i = 0
    while True:
        loss = step(i)
        i += 1
        if i % 50 == 0:
            print(f"{i}: {loss.item():.3f}")
        if clock.tick():
            break


if __name__ == "__main__":
    main()
