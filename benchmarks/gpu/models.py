"""Models of the sizes that GPUs train, as functions that give a model, which gives its loss, and inputs."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.memory.jobs import Gpt, _Hourglass, _images, _Residual, _transformers, _unit
from torch import nn
from torch.nn import functional

Made = tuple[Any, ...]


def _text(words: int, batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, words, (batch, length))


def gpt_medium() -> Made:
    """A decoder of 16 blocks of width 1,024 (heads of 256)."""
    return Gpt(layers=16, width=1024), _text(2048, 8, 1024)


def gpt_medium_again() -> Made:
    """The same with checkpointed blocks."""
    return Gpt(layers=16, width=1024, again=True), _text(2048, 8, 1024)


def llama_small() -> Made:
    """Transformers' Llama with grouped queries."""
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16}
    model = _transformers(
        "LlamaConfig", "LlamaForCausalLM", vocab_size=32000, num_key_value_heads=4, use_cache=False, **sizes
    )
    words = _text(32000, 4, 1024)
    return model, {"input_ids": words, "labels": words}


def bert_base() -> Made:
    """Transformers' BERT with a mask."""
    sizes = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
    words = _text(30522, 16, 256)
    model = _transformers("BertConfig", "BertForMaskedLM", vocab_size=30522, **sizes)
    return model, {"input_ids": words, "labels": words, "attention_mask": torch.ones_like(words)}


def vit_base() -> Made:
    """Transformers' vision transformer."""
    model = _transformers("ViTConfig", "ViTForImageClassification", num_labels=1000)
    images, wanted = _images(32, 224)
    return model, {"pixel_values": images, "labels": wanted}


class _Loss(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.body(x), wanted)


def resnet_like() -> Made:
    """Residual blocks of convolutions on large images."""
    parts = (_unit(3, 64, 2, 7), nn.MaxPool2d(2), *(_Residual(64) for _ in range(3)), _unit(64, 128, 2),
             *(_Residual(128) for _ in range(3)), _unit(128, 256, 2), *(_Residual(256) for _ in range(5)))  # fmt: skip
    return _Loss(nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100))), *_images(64, 224)


def unet_like() -> Made:
    """Down and up again on large images."""
    return _Hourglass(128), torch.randn(16, 3, 256, 256)


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(8000, 512), nn.LSTM(512, 1024, 2, batch_first=True)
        self.head = nn.Linear(1024, 8000)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.layers(self.words(words))
        return functional.cross_entropy(self.head(hidden).flatten(0, 1), words.flatten())


def lstm() -> Made:
    """CuDNN's LSTM."""
    return _Recurrent(), _text(8000, 32, 128)
