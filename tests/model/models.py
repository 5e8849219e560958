"""Whole models with random weights, and their exact FLOPs worked out by hand.

``MODELS`` maps a name to (build, analytic): ``build(attention)`` gives (model, keyword inputs); ``analytic()`` gives
the forward FLOPs of linear and convolution, those of the attention core, and the backward FLOPs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Built = tuple[Any, dict[str, Any]]
Flops = tuple[int, int, int]

LLAMA = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}


def bert(attention: str = "eager") -> Built:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        attn_implementation=attention,
    )
    return BertForMaskedLM(config), {"input_ids": torch.randint(0, 30000, (4, 128))}


def gpt2(attention: str = "eager") -> Built:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(attn_implementation=attention, use_cache=False)
    return GPT2LMHeadModel(config), {"input_ids": torch.randint(0, 50000, (2, 128))}


def llama(attention: str = "eager") -> Built:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**LLAMA, attn_implementation=attention, use_cache=False, tie_word_embeddings=False)
    return LlamaForCausalLM(config), {"input_ids": torch.randint(0, 32000, (2, 256))}


def mixtral(attention: str = "eager", experts: str | None = None) -> Built:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=8000,
        num_local_experts=8,
        num_experts_per_tok=2,
        attn_implementation=attention,
        use_cache=False,
        **({} if experts is None else {"experts_implementation": experts}),
    )
    return MixtralForCausalLM(config), {"input_ids": torch.randint(0, 8000, (2, 128))}


def vit(attention: str = "eager") -> Built:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(attn_implementation=attention, num_labels=1000)
    return ViTForImageClassification(config), {"pixel_values": torch.randn(2, 3, 224, 224)}


def t5(attention: str = "eager") -> Built:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8, vocab_size=32128, use_cache=False,
        attn_implementation=attention,
    )  # fmt: skip
    ids = {"input_ids": torch.randint(0, 32000, (2, 128)), "decoder_input_ids": torch.randint(0, 32000, (2, 64))}
    return T5ForConditionalGeneration(config), ids


def tiny(attention: str = "eager") -> Built:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=24,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=1000,
        attn_implementation=attention,
        use_cache=False,
    )
    return LlamaForCausalLM(config), {"input_ids": torch.randint(0, 1000, (1, 16))}


class ResidualBlock(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.b1 = nn.BatchNorm2d(channels)
        self.c2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.b2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.down = None
        if stride != 1 or channels_in != channels:
            shortcut = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
            self.down = nn.Sequential(shortcut, nn.BatchNorm2d(channels))

    def forward(self, x: Any) -> Any:
        beside = x if self.down is None else self.down(x)
        return self.relu(self.b2(self.c2(self.relu(self.b1(self.c1(x))))) + beside)


class ResNet18(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks, before = [], 64
        for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [ResidualBlock(before, channels, stride), ResidualBlock(channels, channels, 1)]
            before = channels
        self.layers = nn.Sequential(*blocks)
        self.gap = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, 1000)

    def forward(self, pixel_values: Any) -> Any:
        x = self.pool(self.relu(self.bn(self.stem(pixel_values))))
        return self.fc(torch.flatten(self.gap(self.layers(x)), 1))


def resnet(_attention: str = "eager") -> Built:
    return ResNet18(), {"pixel_values": torch.randn(2, 3, 224, 224)}


def mm(m: int, k: int, n: int) -> int:
    return 2 * m * k * n


def flops_bert(b: int = 4, s: int = 128, layers: int = 24, h: int = 1024, f: int = 4096, v: int = 30522) -> Flops:
    t = b * s
    linear = layers * (4 * mm(t, h, h) + 2 * mm(t, h, f)) + mm(t, h, h) + mm(t, h, v)
    attention = layers * 4 * b * s * s * h
    return linear, attention, 2 * (linear + attention)


def flops_gpt2(b: int = 2, s: int = 128, layers: int = 12, h: int = 768, v: int = 50257) -> Flops:
    t = b * s
    linear = layers * (mm(t, h, 3 * h) + mm(t, h, h) + 2 * mm(t, h, 4 * h)) + mm(t, h, v)
    attention = layers * 4 * b * s * s * h
    return linear, attention, 2 * (linear + attention)


def flops_llama(b: int = 2, s: int = 256, h: int = 512, f: int = 1408, layers: int = 8, v: int = 32000) -> Flops:
    t, kv = b * s, 2 * h // 8
    linear = layers * (2 * mm(t, h, h) + 2 * mm(t, h, kv) + 3 * mm(t, h, f)) + mm(t, h, v)
    attention = layers * 4 * b * s * s * h
    return linear, attention, 2 * (linear + attention)


def flops_mixtral(b: int = 2, s: int = 128, h: int = 256, f: int = 512, layers: int = 4, v: int = 8000) -> Flops:
    t, kv, experts, each = b * s, 2 * h // 8, 8, 2
    layer = 2 * mm(t, h, h) + 2 * mm(t, h, kv) + mm(t, h, experts) + 3 * mm(t * each, h, f)
    linear = layers * layer + mm(t, h, v)
    attention = layers * 4 * b * s * s * h
    return linear, attention, 2 * (linear + attention)


def flops_vit(
    b: int = 2, patches: int = 196, h: int = 768, layers: int = 12, f: int = 3072, classes: int = 1000
) -> Flops:
    s = patches + 1
    t = b * s
    patch = mm(b * patches, 3 * 16 * 16, h)
    linear = layers * (4 * mm(t, h, h) + 2 * mm(t, h, f)) + mm(b, h, classes)
    attention = layers * 4 * b * s * s * h
    return linear + patch, attention, 2 * (linear + attention) + patch  # the image has no gradient


def flops_t5(
    b: int = 2, e: int = 128, d: int = 64, h: int = 512, f: int = 2048, layers: int = 6, v: int = 32128
) -> Flops:
    te, td = b * e, b * d
    encoder = 4 * mm(te, h, h) + 2 * mm(te, h, f)
    decoder = 4 * mm(td, h, h) + 2 * mm(td, h, h) + 2 * mm(te, h, h) + 2 * mm(td, h, f)
    linear = layers * (encoder + decoder) + mm(td, h, v)
    attention = layers * 4 * b * h * (e * e + d * d + d * e)
    return linear, attention, 2 * (linear + attention)


def flops_resnet(b: int = 2) -> Flops:
    def convolution(channels_in: int, channels: int, kernel: int, size: int) -> int:
        return 2 * b * channels_in * channels * kernel * kernel * size * size

    stem, rest, before, size = convolution(3, 64, 7, 112), mm(b, 512, 1000), 64, 56
    for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        size //= stride
        rest += convolution(before, channels, 3, size) + 3 * convolution(channels, channels, 3, size)
        rest += convolution(before, channels, 1, size) if stride != 1 else 0
        before = channels
    return stem + rest, 0, 2 * rest + stem


MODELS: dict[str, tuple[Callable[..., Built], Callable[[], Flops]]] = {
    "bert": (bert, flops_bert),
    "gpt2": (gpt2, flops_gpt2),
    "llama": (llama, flops_llama),
    "mixtral": (mixtral, flops_mixtral),
    "vit": (vit, flops_vit),
    "t5": (t5, flops_t5),
    "resnet": (resnet, flops_resnet),
}


def first(output: Any) -> Any:
    """The tensor that a loss would be made of."""
    if torch.is_tensor(output):
        return output
    return output.logits if hasattr(output, "logits") else output[0]
