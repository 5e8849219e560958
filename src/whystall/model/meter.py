"""Forward passes of a model, counted and timed while the meter is attached; in between, nothing is in place."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from whystall.model import hooks
from whystall.model.counter import FlopCounter


@dataclass(frozen=True, slots=True)
class Reading:
    """The work of a module itself, without its children; ``seconds`` is the time of its whole forward."""

    module: nn.Module
    model_flops: int
    all_flops: int
    seconds: float


class ForwardMeter:
    """Counts each forward pass of ``model``, or of a part that is called on its own (an encoder), however it ends.

    Without ``counts`` it only times, which is more exact.

    On a GPU the time lies between two events in the module's stream, read when the readings are.
    """

    def __init__(self, model: nn.Module, after_each: Callable[[], None] | None = None, *, counts: bool = True) -> None:
        self._model = model
        self._after_each = after_each
        self._counter = FlopCounter(model)
        self._counts = counts
        self._handles: list[Any] = []
        self._open: list[tuple[int, Any]] = []
        self._spans: list[tuple[int, Any, Any]] = []
        self._on_gpu = any(one.is_cuda for one in model.parameters())

    def attach(self) -> None:
        """From now on, passes are counted."""
        self._handles = hooks.watch(self._model, self._before, self._after)

    def detach(self) -> None:
        """From now on, they are not."""
        while self._handles:
            self._handles.pop().remove()

    def readings(self) -> list[Reading]:
        """The work of every module until now."""
        model_flops: defaultdict[int, int] = defaultdict(int)
        all_flops: defaultdict[int, int] = defaultdict(int)
        modules = dict(self._model.named_modules(remove_duplicate=False))
        for profile in self._counter.profile.modules:
            if profile.path not in modules:
                continue
            places = [(profile.path, 1)] if profile.parent is None else [(profile.path, 1), (profile.parent, -1)]
            for path, sign in places:  # a child's work is subtracted from its parent
                key = id(modules[path])
                model_flops[key] += sign * profile.forward.model_flops
                all_flops[key] += sign * profile.forward.all_flops
        seconds = self._seconds()
        return [
            Reading(module, model_flops[key], all_flops[key], seconds.get(key, 0.0))
            for key, module in ((id(module), module) for module in self._model.modules())
        ]

    def _before(self, module: nn.Module, _inputs: Any) -> None:
        if self._counts:
            if not self._open:
                self._counter.start()
            self._counter.before_forward(module, _inputs)
        self._open.append((id(module), self._now()))

    def _after(self, module: nn.Module, _inputs: Any, _outputs: Any) -> None:
        now = self._now()
        was_open = bool(self._open)
        while self._open:
            key, started = self._open.pop()
            self._spans.append((key, started, now))
            if key == id(module):
                break
        if self._counts and was_open:
            self._counter.after_forward(module, _inputs, _outputs)
            if not self._open:
                self._counter.stop()
        if module is self._model and was_open and not self._open and self._after_each is not None:
            self._after_each()

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self) -> dict[int, float]:
        if self._on_gpu and self._spans:
            torch.cuda.synchronize()
        total: defaultdict[int, float] = defaultdict(float)
        for key, started, ended in self._spans:
            total[key] += started.elapsed_time(ended) / 1e3 if self._on_gpu else ended - started
        return dict(total)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, and afterwards in the modes in which it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def is_model(value: object) -> bool:
    """Whether ``value`` is a ``torch.nn.Module``."""
    return isinstance(value, nn.Module)


def input_of_shape(model: nn.Module, shape: Sequence[int]) -> torch.Tensor:
    """An input of ``shape`` in the dtype and on the device of the model's parameters; token ids for an embedding."""
    parameter = next(model.parameters(), None)
    device = parameter.device if parameter is not None else None
    first = next((one for one in model.modules() if next(one.parameters(recurse=False), None) is not None), None)
    if isinstance(first, nn.Embedding):
        return torch.zeros(tuple(shape), dtype=torch.long, device=device)
    return torch.ones(tuple(shape), dtype=parameter.dtype if parameter is not None else None, device=device)


def call(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], *, generate: bool = False) -> Any:
    """The model's output, or its generated output."""
    return model.generate(*args, **kwargs) if generate else model(*args, **kwargs)
