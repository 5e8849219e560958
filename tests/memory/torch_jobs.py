"""Jobs of torch whose memory is recorded: a model of repeated blocks and one without repetition."""

from __future__ import annotations

from typing import Any

import torch
from tests.memory.program_recorder import Recorder
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from whystall.memory.results import Category

_WORDS = 300


class Block(nn.Module):
    """Attention and a perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """One layer."""
        query, key, value = self.qkv(self.norm(x)).chunk(3, -1)
        scores = (query @ key.transpose(1, 2)).softmax(-1)
        x = x + scores @ value
        hidden = self.up(x)
        out: Tensor = x + self.down(functional.gelu(hidden))
        return out


class Words(nn.Module):
    """Blocks in a loop."""

    def __init__(self, *, computes_again: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_WORDS, 32)
        self.blocks = nn.ModuleList(Block(32) for _ in range(4))
        self.head = nn.Linear(32, _WORDS)
        self.computes_again = computes_again

    def forward(self, words: Tensor) -> Tensor:
        """Logits."""
        x = self.embedding(words)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.computes_again else block(x)
        out: Tensor = self.head(x)
        return out


class Pictures(nn.Module):
    """Layers none of which is like another."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.third, self.fourth = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        """Features."""
        x = functional.relu(self.norm(self.first(x)))
        x = functional.max_pool2d(functional.relu(self.second(x)), 2)
        x = functional.relu(self.third(x))
        return functional.relu(self.fourth(x))


class OwnAdam(torch.optim.Optimizer):
    """An optimizer as courses write it: its state is made anew in each step."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:
        """One step."""
        with torch.no_grad():
            self._change()

    def _change(self) -> None:
        for parameter in (one for group in self.param_groups for one in group["params"]):
            state = self.state[parameter]
            mean = state.get("mean", torch.zeros_like(parameter))
            square = state.get("square", torch.zeros_like(parameter))
            state["mean"] = 0.9 * mean + 0.1 * parameter.grad
            state["square"] = 0.9 * square + 0.1 * parameter.grad**2
            parameter.sub_(0.1 * state["mean"] / (state["square"].sqrt() + 1e-8))


def words() -> Tensor:
    """A batch."""
    return torch.randint(0, _WORDS, (4, 24))


def train(recorder: Recorder, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    """Steps on words."""
    recorder.mark(Category.PARAMETERS, model.parameters())
    for _ in range(steps):
        batch = words()
        recorder.mark(Category.PROGRAM, [batch])
        with recorder.saves():
            logits = model(batch)
            loss = functional.cross_entropy(logits.reshape(-1, _WORDS).float(), batch.reshape(-1))
        loss.backward()
        recorder.mark(Category.GRADIENTS, (one.grad for one in model.parameters() if one.grad is not None))
        del logits, loss
        optimizer.step()
        states = (value for state in optimizer.state.values() for value in state.values())
        recorder.mark(Category.OPTIMIZER_STATE, (one for one in states if isinstance(one, Tensor)))
        optimizer.zero_grad()


def forward(recorder: Recorder, model: nn.Module, batch: Tensor, times: int = 1) -> Tensor:
    """Forward passes alone; the last one's output."""
    recorder.mark(Category.PARAMETERS, [*model.parameters(), *model.buffers()])
    recorder.mark(Category.PROGRAM, [batch])
    out = batch
    for _ in range(times):
        with recorder.saves():
            out = model(batch)
    return out
