"""``whystall.model_profile``: one counted run of a model, and a few timed ones."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd import _profiler_enabled
from torch.optim import Optimizer

from whystall.model.counter import FlopCounter
from whystall.model.restore import fresh, leaves, unchanged
from whystall.model.results import PHASES, Amount, ModelProfile
from whystall.model.stopwatch import BusyError, Stopwatch, Times

Loss = Callable[[Any], torch.Tensor]


def model_profile(
    model: nn.Module,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    backward: bool = True,
    optimizer: Optimizer | None = None,
    *,
    loss: Loss | None = None,
    repeats: int = 3,
) -> ModelProfile:
    """The cost of one run of ``model(*args, **kwargs)``, in all and by module, with measured times.

    ``args`` may be a single tensor. With ``backward`` the gradient of ``loss(output)`` is computed too: by default of
    the output's ``loss`` if it has one, else of its first tensor that has a gradient. ``optimizer`` steps once.
    ``repeats`` further runs are timed; with 0 nothing is. Each run gets the tensors of ``args`` and copies of its other
    objects, such as a cache that grows. The model, its gradients and its buffers, those of the inputs, the optimizer
    and the random numbers are afterwards as they were.

    >>> import torch
    >>> profile = model_profile(torch.nn.Linear(64, 32), torch.zeros(8, 64), repeats=0)
    >>> profile.parameters, profile.forward.model_flops, profile.backward.model_flops
    (2080, 32768, 32768)
    """
    run = _Run(model, _as_arguments(args), dict(kwargs or {}), backward, optimizer, loss)
    with unchanged(model, optimizer, (run.args, run.kwargs)):
        counter = FlopCounter(model)
        with counter:
            run()
        profile = counter.profile
        reason = _cannot_time(model) if repeats else "timing was not asked for"
        timed: list[Times] = []
        threads: list[Times] = []
        if reason is None:
            for _ in range(repeats):
                run.clear()
                try:
                    with Stopwatch(model) as watch:
                        run()
                except BusyError as waited:
                    reason = str(waited)
                    break
                if watch.thread_times:  # on a CPU, where the pass runs on the calling thread
                    run.add_backward(profile.modules[0].path, watch)
                timed.append(watch.times)
                threads.append(watch.thread_times)
    return with_times(profile, timed, reason, threads)


def adamw(model: nn.Module) -> Optimizer:
    """The optimizer that stands for training where none was named."""
    return torch.optim.AdamW([one for one in model.parameters() if one.requires_grad])


class _Run:
    """One step, the same each time."""

    def __init__(
        self,
        model: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        backward: bool,
        optimizer: Optimizer | None,
        loss: Loss | None,
    ) -> None:
        self._model, self.args, self.kwargs = model, args, kwargs
        self._backward, self._optimizer, self._loss = backward, optimizer, loss
        self._backward_ns: tuple[int, int] | None = None  # as it passed, and as the thread spent it

    def __call__(self) -> None:
        with torch.enable_grad() if self._backward else torch.no_grad():
            args, kwargs = fresh((self.args, self.kwargs))
            output = self._model(*args, **kwargs)
            if self._backward:
                target = differentiable(output) if self._loss is None else self._loss(output)
                if target is not None:
                    ones = [torch.ones_like(target)]
                    began = time.perf_counter_ns(), time.thread_time_ns()
                    torch.autograd.backward([target], ones)
                    self._backward_ns = time.perf_counter_ns() - began[0], time.thread_time_ns() - began[1]
        if self._optimizer is not None:
            self._optimizer.step()

    def clear(self) -> None:
        """Drops gradients, so that each run computes new ones."""
        for tensor in (*self._model.parameters(), *leaves((self.args, self.kwargs))):
            tensor.grad = None

    def add_backward(self, root: str, watch: Stopwatch) -> None:
        """The whole backward pass without recomputation: its nodes and the engine's time between them."""
        if self._backward_ns is None:
            return
        for times, whole in zip((watch.times, watch.thread_times), self._backward_ns, strict=True):
            nodes = times.get((root, "backward"), 0)
            times[root, "backward"] = max(whole - times.get((root, "recompute"), 0), nodes)


def differentiable(output: Any) -> torch.Tensor | None:
    """The start of a backward pass: the output's ``loss``, else its first tensor that has a gradient."""
    if isinstance(output, torch.Tensor):
        return output if output.requires_grad else None
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor) and loss.requires_grad:
        return loss
    values: Sequence[Any] = ()
    if isinstance(output, Mapping):
        values = list(output.values())
    elif isinstance(output, (list, tuple)):
        values = output
    for value in values:
        found = differentiable(value)
        if found is not None:
            return found
    return None


def _as_arguments(args: Any) -> tuple[Any, ...]:
    return tuple(args) if isinstance(args, (list, tuple)) else (args,)


def _cannot_time(model: nn.Module) -> str | None:
    tensors = [*model.parameters(), *model.buffers()]
    if any(one.device.type == "meta" or type(one).__name__ == "FakeTensor" for one in tensors):
        return "the model has no data (meta or fake tensors)"
    if _profiler_enabled():
        return "another profiler is running"
    return None


def with_times(
    profile: ModelProfile, timed: Sequence[Times], reason: str | None, threads: Sequence[Times] = ()
) -> ModelProfile:
    """``profile`` with the median and the range of ``timed`` in every phase that ran; ``threads`` are thread times."""
    from msgspec.structs import replace  # noqa: PLC0415 - needed here alone

    if not timed:
        return replace(profile, untimed_because=reason)
    root = profile.modules[0].path

    def amounts(path: str, old: Any) -> dict[str, Amount]:
        return {
            phase: _timed(
                getattr(old, phase),
                [run.get((path, phase)) for run in timed],
                [run.get((path, phase)) for run in threads],
            )
            for phase in PHASES
        }

    modules = tuple(replace(module, **amounts(module.path, module)) for module in profile.modules)
    return replace(profile, **amounts(root, profile), modules=modules, time_repeats=len(timed))


def _timed(amount: Amount, times: Sequence[int | None], threads: Sequence[int | None]) -> Amount:
    from msgspec.structs import replace  # noqa: PLC0415 - needed here alone

    known = [one for one in times if one is not None]
    if not known:
        return amount
    on_thread = [one for one in threads if one is not None]
    return replace(
        amount,
        time_ns=round(statistics.median(known)),
        time_spread_ns=max(known) - min(known),
        thread_time_ns=round(statistics.median(on_thread)) if on_thread else None,
    )
