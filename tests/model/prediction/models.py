"""Models whose memory is known: by a formula, or by running them."""

from __future__ import annotations

import copy
import os
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class PaperBlock(nn.Module):
    """The block that Korthikanti et al. count: attention and dropout unfused, 16 bits."""

    def __init__(self, width: int = 2048, heads: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        scores = torch.softmax((query @ key.transpose(-1, -2)) * (width // self.heads) ** -0.5, -1)
        mixed = (self.dropout(scores) @ value).transpose(1, 2).reshape(batch, length, width)
        x = x + self.dropout(self.out(mixed))
        return x + self.dropout(self.down(functional.gelu(self.up(self.second(x)))))


def paper_block() -> Any:
    return PaperBlock(), torch.randn(2, 1024, 2048)


class Decoder(nn.Module):
    def __init__(self, layers: int, width: int, words: int, *, heads: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), words.flatten())


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(x)))


def shallow() -> Any:
    return Decoder(2, 64, 256), torch.randint(0, 256, (2, 32))


def deep(batch: int = 2) -> Any:
    return Decoder(9, 64, 256), torch.randint(0, 256, (batch, 32))


class RmsNorm(nn.Module):
    """Llama's normalisation as Transformers writes it: in float32, back to what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class LlamaLayer(nn.Module):
    def __init__(self, width: int = 4096, inner: int = 11008, heads: int = 32) -> None:
        super().__init__()
        self.first, self.second = RmsNorm(width), RmsNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        given = self.first(x)
        query, key, value = (
            one(given).view(batch, length, self.heads, -1).transpose(1, 2) for one in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        given = self.second(x)
        return x + self.down(functional.silu(self.gate(given)) * self.up(given))


class Llama(nn.Module):
    def __init__(self, words: int = 32000, width: int = 4096) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(LlamaLayer() for _ in range(32))
        self.norm, self.head = RmsNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return functional.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), words.flatten())


def llama_7b() -> Any:
    return Llama(), torch.randint(0, 32000, (1, 4096))


def square() -> Any:
    return nn.Linear(512, 512, bias=False), torch.randn(4, 512)


def frozen() -> Any:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    model[0].requires_grad_(False)
    return model, torch.randn(16, 64)


class Picky(nn.Module):
    """A layer that asks for values: as many rows as a router sends to an expert."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.expert = nn.Linear(32, 4), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.router(x).topk(2, -1).indices
        rows, _ = torch.where(chosen == 1)
        return torch.zeros_like(x).index_add(0, rows, self.expert(x[rows]))


def picky() -> Any:
    return Picky(), torch.randn(4096, 32)


class Asking(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if mask.all():
            return x * 2
        return torch.cat([x, x, x, x])


def asking() -> Any:
    return Asking(), torch.randn(1000, requires_grad=True), torch.ones(8, dtype=torch.bool)


def chatty() -> Any:
    print("\x00\x00 a factory that prints")  # noqa: T201 - what a user's file may do
    return square()


def failing() -> Any:
    raise KeyError("weights")


def aborting() -> Any:
    os.abort()


class Unknowable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.layer(x)
        return out[out > 0]


def unknowable() -> Any:
    return Unknowable(), torch.randn(4, 8)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number in range(8):
            x = self.layers[number](x)
        return x


def counting() -> Any:
    return Counting(), torch.randn(4, 16)


class Stepwise(nn.Module):
    """Layers that a Sequential of copies holds, and a loss that is averaged."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.Linear(128, 128)
        self.layers = nn.Sequential(*(copy.deepcopy(layer) for _ in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(self.layers(x), x)


def stepwise() -> Any:
    return Stepwise(), torch.randn(512, 128)


class Branches(nn.Module):
    """Gradients of one tensor from several sides, and from rows that are gathered."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(64, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.into(x)
        rows = torch.zeros(8, 256, dtype=torch.int64)
        return (hidden * 2.0).sum() + (hidden * 3.0).sum() + hidden.gather(0, rows).sum()


def branches() -> Any:
    return Branches(), torch.randn(1024, 64)


class FlashBlock(PaperBlock):
    """The same with attention in one kernel, which keeps no scores."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.down(functional.gelu(self.up(self.second(x)))))


def _stack(kind: type[PaperBlock], count: int) -> Any:
    return nn.Sequential(*(kind(12288, 96) for _ in range(count))), torch.randn(1, 2048, 12288)


def paper_6() -> Any:
    return _stack(PaperBlock, 6)


def paper_8() -> Any:
    return _stack(PaperBlock, 8)


def flash_6() -> Any:
    return _stack(FlashBlock, 6)


def flash_8() -> Any:
    return _stack(FlashBlock, 8)


class ExpertLayer(nn.Module):
    """Every token goes to every expert."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.experts = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = self.norm(x)
        for expert in self.experts:
            x = x + expert(given)
        return x


class StackedExpertLayer(nn.Module):
    """The same with the experts' weights in one parameter."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.experts = nn.LayerNorm(width), nn.Parameter(torch.randn(4, width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.bmm(self.norm(x).expand(4, -1, -1), self.experts).sum(0)


def experts() -> Any:
    return nn.Sequential(*(ExpertLayer(64) for _ in range(2))), torch.randn(32, 64)


def stacked_experts() -> Any:
    return nn.Sequential(*(StackedExpertLayer(64) for _ in range(2))), torch.randn(32, 64)


class Scores(nn.Module):
    """Attention written out: it keeps its scores."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(x).chunk(3, -1)
        return self.out(torch.softmax(query @ key.transpose(-1, -2), -1) @ value)


class TwoParts(nn.Module):
    """Two parts that each could be computed again alone."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.attention = Scores(width)
        self.mlp = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(x)
        return x + self.mlp(x)


class Parts(nn.Module):
    def __init__(self, layers: int, width: int, inner: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TwoParts(width, inner) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def parts(batch: int = 8) -> Any:
    return Parts(4, 64, 128), torch.randn(batch, 256, 64)


def many_parts(batch: int = 8) -> Any:
    return Parts(9, 64, 128), torch.randn(batch, 256, 64)
