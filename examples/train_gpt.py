"""Trains a small GPT on made-up text, on the CPU, in seconds; ``--profile`` records a few steps with torch.profiler.

    python examples/train_gpt.py --profile trace.json.gz
    whystall analyze trace.json.gz

The model is GPT-2's in small (Radford et al., 2019, https://openai.com/research/better-language-models), the text
is drawn from a fixed seed: the loss of two runs on one machine is the same.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

if TYPE_CHECKING:
    from collections.abc import Iterator

ALPHABET = "abcdefghijklmnopqrstuvwxyz "
TOKENS = {letter: token for token, letter in enumerate(ALPHABET)}


@dataclass(frozen=True)
class Config:
    """The size of the model and of its batches."""

    vocabulary: int = len(ALPHABET)
    context: int = 64
    layers: int = 2
    heads: int = 4
    width: int = 64
    batch: int = 8


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.query_key_value = nn.Linear(config.width, 3 * config.width)
        self.project = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` of shape (batch, context, width), mixed along the context."""
        batch, context, width = x.shape
        heads = self.query_key_value(x).view(batch, context, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        projected: Tensor = self.project(mixed.transpose(1, 2).reshape(batch, context, width))
        return projected


class Block(nn.Module):
    """Attention, then a two-layer perceptron, each on a normalised residual stream."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm_2 = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(),
            nn.Linear(4 * config.width, config.width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """``x`` of shape (batch, context, width), one layer on."""
        x = x + self.attention(self.norm_1(x))
        mixed: Tensor = x + self.mlp(self.norm_2(x))
        return mixed


class GPT(nn.Module):
    """Predicts the next token at every position."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of shape (batch, context, vocabulary) for ``tokens`` of shape (batch, context)."""
        positions = torch.arange(tokens.shape[1])
        x = self.tokens(tokens) + self.positions(positions)
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


class MadeUpText(Dataset[tuple[Tensor, Tensor]]):
    """Words drawn from a small dictionary, one letter per token."""

    def __init__(self, config: Config, *, length: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.context = config.context
        self.length = length
        self.words = [self._word(generator) for _ in range(200)]
        self.seed = seed

    def _word(self, generator: torch.Generator) -> str:
        size = int(torch.randint(2, 9, (1,), generator=generator))
        letters = torch.randint(0, 26, (size,), generator=generator)
        return "".join(ALPHABET[letter] for letter in letters)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """The tokens of one example and, one further, their targets."""
        generator = torch.Generator().manual_seed(self.seed + index)
        picks = torch.randint(0, len(self.words), (self.context,), generator=generator)
        text = " ".join([self.words[pick] for pick in picks.tolist()])[: self.context + 1]
        tokens = torch.tensor([TOKENS[letter] for letter in text])
        return tokens[:-1], tokens[1:]


def train(*, steps: int, seed: int, trace: Path | None) -> list[float]:
    """The loss of every step; with ``trace`` the last steps are recorded there."""
    torch.manual_seed(seed)
    config = Config()
    model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batches = DataLoader(MadeUpText(config, length=steps * config.batch, seed=seed), batch_size=config.batch)
    losses = []
    with recorder(trace, steps=steps) as profiler:
        for tokens, targets in batches:
            logits = model(tokens)
            loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if profiler is not None:
                profiler.step()
    return losses


def recorder(trace: Path | None, *, steps: int) -> profile | nullcontext[None]:
    """A profiler that writes the last three steps to ``trace``; without ``trace``, nothing."""
    if trace is None:
        return nullcontext()
    active = 3
    return profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=max(steps - active - 1, 0), warmup=1, active=active, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(trace)),
        record_shapes=True,
        profile_memory=True,
        with_stack=True,
        with_modules=True,
    )


def lines(losses: list[float]) -> Iterator[str]:
    """What is said of the training: some of its losses."""
    for step, loss in enumerate(losses):
        if step % 5 == 0 or step == len(losses) - 1:
            yield f"step {step:3d}  loss {loss:.3f}"


def main() -> None:
    """Trains and prints the loss."""
    parser = argparse.ArgumentParser(description="Train a small GPT on made-up text, on the CPU.")
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and text (default: 0)")
    parser.add_argument("--profile", type=Path, metavar="TRACE.json.gz", help="record the last steps there")
    arguments = parser.parse_args()
    for line in lines(train(steps=arguments.steps, seed=arguments.seed, trace=arguments.profile)):
        print(line)
    if arguments.profile is not None:
        print(f"trace: {arguments.profile}")


if __name__ == "__main__":
    main()
