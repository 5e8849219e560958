"""Small models of many kinds, as a user has them: functions that give a model, which gives its loss, and inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Made = tuple[Any, ...]
WORDS = 2048


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads, self.dropout = heads, nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        batch, length, width = x.shape
        parts = self.qkv(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.down(functional.gelu(self.up(self.second(x)))))


class Gpt(nn.Module):
    """A decoder; ``again`` computes its blocks' activations again."""

    def __init__(self, *, layers: int = 4, width: int = 256, again: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(Block(width, 4, dropout) for _ in range(layers))
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)
        self.again = again

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """The loss of predicting ``words`` from themselves."""
        x = self.words(words)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return functional.cross_entropy(self.head(self.last(x)).flatten(0, 1), words.flatten())


def _words(batch: int = 4, length: int = 128) -> torch.Tensor:
    return torch.randint(0, WORDS, (batch, length))


def gpt() -> Made:
    """A decoder of four blocks."""
    return Gpt(), _words()


def deep_gpt() -> Made:
    """A decoder of twelve blocks, of which a prediction runs few."""
    return Gpt(layers=12, width=128), _words(8)


def gpt_dropout() -> Made:
    """With dropout, which has other kernels."""
    return Gpt(dropout=0.1), _words()


def gpt_checkpointed() -> Made:
    """Every block checkpointed."""
    return Gpt(layers=8, again=True), _words(8)


class _LowRank(nn.Module):
    def __init__(self, frozen: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + self.up(self.down(x))


def lora() -> Made:
    """Low-rank adapters beside frozen weights."""
    model = Gpt().requires_grad_(False)
    for block in model.blocks:
        block.qkv, block.out = _LowRank(block.qkv), _LowRank(block.out)
    return model, _words()


class _Experts(nn.Module):
    def __init__(self, width: int = 256, experts: int = 8) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(experts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2, -1)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == number)
            if rows.numel():
                mixed = mixed.index_add(0, rows, expert(x[rows]) * weights[rows, place, None])
        return mixed


class _Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.layers = nn.Linear(128, 256), nn.ModuleList(_Experts() for _ in range(2))
        self.out = nn.Linear(256, 10)

    def forward(self, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        hidden = self.into(x)
        for layer in self.layers:
            hidden = hidden + layer(hidden)
        return functional.cross_entropy(self.out(hidden), wanted)


def experts() -> Made:
    """A mixture of experts that asks for the places of each expert's tokens."""
    return _Mixture(), torch.randn(2048, 128), torch.randint(0, 10, (2048,))


class _Classifier(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.body(x), wanted)


def _images(batch: int, size: int, classes: int = 100) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, 3, size, size), torch.randint(0, classes, (batch,))


def _unit(into: int, out: int, stride: int, kernel: int = 3, groups: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(into, out, kernel, stride, kernel // 2, bias=False, groups=groups)
    return nn.Sequential(convolution, nn.BatchNorm2d(out), nn.ReLU(inplace=True))


def convolution() -> Made:
    """A plain convolutional network."""
    units = (_unit(3, 32, 1), _unit(32, 64, 2), _unit(64, 128, 2), _unit(128, 256, 2))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100))
    return _Classifier(nn.Sequential(*units, *head)), *_images(16, 64)


def depthwise() -> Made:
    """Depthwise and pointwise convolutions."""
    units = [_unit(3, 32, 2)]
    for into, out in ((32, 64), (64, 128), (128, 256)):
        units += [_unit(into, into, 2, groups=into), _unit(into, out, 1, kernel=1)]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100))
    return _Classifier(nn.Sequential(*units, *head)), *_images(16, 128)


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = _unit(width, width, 1)
        self.second = nn.Sequential(nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.second(self.first(x)))


def residual() -> Made:
    """Residual blocks with pooling."""
    parts = (_unit(3, 64, 2), nn.MaxPool2d(2), _Residual(64), _Residual(64), _unit(64, 128, 2), _Residual(128))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 100))
    return _Classifier(nn.Sequential(*parts, *head)), *_images(16, 128)


def perceptron() -> Made:
    """Linear layers alone."""
    layers = (nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 100))
    return _Classifier(nn.Sequential(*layers)), torch.randn(256, 512), torch.randint(0, 100, (256,))


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(1000, 128), nn.LSTM(128, 256, 2, batch_first=True)
        self.head = nn.Linear(256, 1000)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.layers(self.words(words))
        return functional.cross_entropy(self.head(hidden).flatten(0, 1), words.flatten())


def recurrent() -> Made:
    """An LSTM: known to be missed, since oneDNN's kernel keeps a workspace that no formula here knows."""
    return _Recurrent(), torch.randint(0, 1000, (32, 64))


def _transformers(config: str, model: str, **settings: Any) -> Any:
    import transformers  # noqa: PLC0415 - slow to import, and other jobs do without

    return getattr(transformers, model)(getattr(transformers, config)(**settings))


def llama() -> Made:
    """Transformers' Llama with grouped queries."""
    sizes = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "num_attention_heads": 4}
    model = _transformers(
        "LlamaConfig", "LlamaForCausalLM", vocab_size=WORDS, num_key_value_heads=2, use_cache=False, **sizes
    )
    words = _words()
    return model, {"input_ids": words, "labels": words}


def gpt2() -> Made:
    """Transformers' GPT-2, with dropout."""
    model = _transformers("GPT2Config", "GPT2LMHeadModel", vocab_size=WORDS, n_embd=256, n_layer=4, n_head=4)
    words = _words()
    return model, {"input_ids": words, "labels": words}


def bert() -> Made:
    """Transformers' BERT with a mask of attention."""
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 4}
    words = _words(8)
    mask = torch.ones_like(words)
    return _transformers("BertConfig", "BertForMaskedLM", vocab_size=WORDS, **sizes), {
        "input_ids": words, "labels": words, "attention_mask": mask
    }  # fmt: skip


def mixtral() -> Made:
    """Transformers' mixture of experts."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4}
    model = _transformers(
        "MixtralConfig", "MixtralForCausalLM", vocab_size=WORDS, num_key_value_heads=2, num_local_experts=4, **sizes
    )
    words = _words()
    return model, {"input_ids": words, "labels": words}


def vit() -> Made:
    """Transformers' vision transformer."""
    sizes = {"hidden_size": 192, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 3}
    model = _transformers(
        "ViTConfig", "ViTForImageClassification", image_size=96, patch_size=16, num_labels=100, **sizes
    )
    images, wanted = _images(16, 96)
    return model, {"pixel_values": images, "labels": wanted}


def t5() -> Made:
    """Transformers' T5: an encoder and a decoder."""
    sizes = {"d_model": 256, "d_kv": 64, "d_ff": 1024, "num_layers": 3, "num_heads": 4}
    words = _words()
    return _transformers(
        "T5Config", "T5ForConditionalGeneration", vocab_size=WORDS, decoder_start_token_id=0, **sizes
    ), {"input_ids": words, "labels": words}


class _Hourglass(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.into, self.norm = nn.Conv2d(3, width, 3, 1, 1), nn.GroupNorm(8, width)
        self.down, self.middle = nn.Conv2d(width, 2 * width, 3, 2, 1), nn.Conv2d(2 * width, 2 * width, 3, 1, 1)
        self.up, self.out = nn.ConvTranspose2d(2 * width, width, 2, 2), nn.Conv2d(2 * width, 3, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = functional.silu(self.norm(self.into(x)))
        deep = functional.silu(self.middle(functional.silu(self.down(first))))
        return functional.mse_loss(self.out(torch.cat([self.up(deep), first], 1)), x)


def hourglass() -> Made:
    """Down and up again, as diffusion models and segmenters do."""
    return _Hourglass(), torch.randn(8, 3, 64, 64)


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Linear(256, 10)

    def forward(self, words: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.head(self.layers(self.words(words)).mean(1)), wanted)


def encoder() -> Made:
    """PyTorch's own encoder, with dropout."""
    return _Encoder(), _words(8), torch.randint(0, 10, (8,))


class _Adversary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.requires_grad_()
        score = self.body(x).sum()
        (slope,) = torch.autograd.grad(score, x, create_graph=True)
        return score + (slope.norm(dim=-1) - 1).pow(2).mean()


def penalty() -> Made:
    """A penalty on gradients, which runs backward twice."""
    return _Adversary(), torch.randn(1024, 256)


class _Teacher(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = Gpt(layers=4).requires_grad_(False), Gpt(layers=2, width=128)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = self._scores(self.teacher, words).softmax(-1)
        return functional.kl_div(self._scores(self.student, words).log_softmax(-1), wanted, reduction="batchmean")

    @staticmethod
    def _scores(model: Gpt, words: torch.Tensor) -> torch.Tensor:
        x = model.words(words)
        for block in model.blocks:
            x = block(x)
        return model.head(model.last(x))


def distilled() -> Made:
    """A student beside a frozen teacher."""
    return _Teacher(), _words()
