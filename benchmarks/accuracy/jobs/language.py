"""Trains a small GPT on made-up text.

python language.py [--fault
python|collections|checkpoint|logging|evaluation|attention|threads|growth|twice|recompile|lock]
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.accuracy.jobs.loop import Asked, Batches, Clock, bracket, main

FAULTS = (
    "python",
    "collections",
    "checkpoint",
    "logging",
    "evaluation",
    "attention",
    "threads",
    "growth",
    "twice",
    "recompile",
    "lock",
)
VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS, BATCH = 64, 256, 128, 4, 3, 3


class Block(nn.Module):
    """A transformer block; ``eager`` writes attention out."""

    def __init__(self, width: int, *, eager: bool) -> None:
        super().__init__()
        self.eager = eager
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.widen = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, of the input's shape (batch, context, width)."""
        batch, context, width = x.shape
        mixed = self.mix(self.norm(x)).view(batch, context, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        query, key, value = mixed
        if self.eager:
            scores = query @ key.transpose(-2, -1) / (width // HEADS) ** 0.5
            hidden = torch.ones(context, context, dtype=torch.bool).triu(1)
            found = torch.softmax(scores.masked_fill(hidden, float("-inf")), -1) @ value
        else:
            found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(found.transpose(1, 2).reshape(batch, context, width))
        return x + self.widen(x)


class Language(nn.Module):
    """A GPT."""

    def __init__(self, *, eager: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH, eager=eager) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next token."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(x)
        return scores


class Faults:
    """What the flag adds to the loop."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.step = 0
        self.kept: list[Any] = []
        self.folder = Path(tempfile.mkdtemp(prefix="accuracy-job-"))
        self.log: TextIO = (self.folder / "log.txt").open("w")
        self.burners: list[subprocess.Popen[bytes]] = []
        if fault == "collections":
            self.kept = [{"index": index, "next": [index]} for index in range(400_000)]
        if fault == "threads":
            torch.set_num_threads(8)
            program = "while True: pass"
            self.burners = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]

        self.over = threading.Event()
        if fault == "lock":
            threading.Thread(target=count_words, args=(self.over,), daemon=True).start()

    def before(self, tokens: Tensor) -> None:
        """Before the forward pass."""
        if self.fault == "python":
            build_targets(tokens)
        if self.fault == "collections" and self.step % 2 == 0:
            gc.collect()

    def after(self, model: nn.Module, loss: Tensor, tokens: Tensor) -> None:
        """After the optimizer."""
        self.step += 1
        if self.fault == "checkpoint" and self.step % 5 == 0:
            self.save(model)
        elif self.fault == "logging":
            self.log_metrics(loss)
        elif self.fault == "evaluation" and self.step % 5 == 0:
            evaluate(model, tokens)
        elif self.fault == "growth":
            self.kept.append((loss, torch.randn(200_000)))

    def save(self, model: nn.Module) -> None:
        """Write a checkpoint and wait for the disk."""
        padding = torch.zeros(12_000_000)
        with (self.folder / "checkpoint.pt").open("wb") as file:
            torch.save({"model": model.state_dict(), "optimizer": padding}, file)
            file.flush()
            os.fsync(file.fileno())

    def log_metrics(self, loss: Tensor) -> None:
        """Write many lines, each to the disk."""
        for number in range(4):
            self.log.write(f"{self.step}.{number} {loss.item():.6f}\n")
            self.log.flush()
            os.fsync(self.log.fileno())
            time.sleep(0.003)  # a disk that is farther away than this machine's

    def end(self) -> None:
        """Stop what was started."""
        self.over.set()
        for burner in self.burners:
            burner.kill()
            burner.wait()
        self.log.close()


def build_targets(tokens: Tensor) -> int:
    """Something that should have been a tensor operation."""
    total = 0
    for row in tokens.tolist():
        for _ in range(400):
            for token in row:
                total += token * token % 7
    return total


def count_words(over: threading.Event) -> None:
    """Statistics of a text, on a thread of their own that keeps the interpreter's lock."""
    counts: dict[int, int] = {}
    while not over.wait(0.012):
        for number in range(60_000):
            counts[number % 997] = counts.get(number % 997, 0) + 1


def evaluate(model: nn.Module, tokens: Tensor) -> None:
    """A validation loop."""
    model.eval()
    with torch.no_grad():
        for _ in range(6):
            model(tokens)
    model.train()


def train(asked: Asked, clock: Clock) -> None:
    """The training loop."""
    fault = "" if asked.cured else asked.fault
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model: nn.Module = Language(eager=fault == "attention")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    text = torch.randint(0, VOCABULARY, (512, CONTEXT))
    batches = DataLoader(Batches(text, BATCH, asked.steps), batch_size=None)
    faults = Faults(fault)
    if asked.fault == "recompile":  # texts of many lengths, for each of which a model of fixed shapes is compiled anew
        model = torch.compile(model, backend="eager", dynamic=asked.cured)
    for number, whole in enumerate(batches):
        tokens = whole[:, : CONTEXT - 8 * (number // 8 % 7)] if asked.fault == "recompile" else whole
        with bracket(model):
            faults.before(tokens)
            optimizer.zero_grad()
            scores = model(tokens)
            if fault == "twice":
                scores = model(tokens)
            loss = functional.cross_entropy(scores[:, :-1].reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))
            loss.backward()
            optimizer.step()
        faults.after(model, loss.detach(), tokens)
        clock.mark()
    faults.end()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main(train, FAULTS)
