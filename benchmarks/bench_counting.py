"""What counting and timing cost: a step of a small model with and without, interleaved in one run.

The model is bound by Python and dispatch (24 layers of width 64): the worst case, and like the host thread of a GPU
job. Counting is measured with what `whystall doctor --build-counter` compiles and without. "pass-through" is a dispatch
mode that does nothing, "shortest way" one that also leaves out a Python frame of PyTorch's: no counter that sees every
operator from Python can cost less. "profiler, to events" records operators with their shapes below Python and has them
as objects afterwards, which is what a counter would price. Times are CPU times of the process, which other work on the
machine lengthens least.

python benchmarks/bench_counting.py [ROUNDS]
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest import mock

os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from whystall import FlopCounter
from whystall.model import native
from whystall.model.stopwatch import Stopwatch

ROUNDS = 15


class PassThrough(TorchDispatchMode):
    """Calls each operator and does nothing else."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The operator's result."""
        return func(*args, **(kwargs or {}))


class ShortestWay(TorchDispatchMode):
    """Calls each operator as directly as Python can."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Spares a check of each call."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The operator's result."""
        return func._op(*args, **kwargs) if kwargs else func._op(*args)  # noqa: SLF001 - what the public call calls


def tiny_model() -> tuple[Any, Any]:
    """A Llama of 24 small layers, and its input."""
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=24,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=1000,
        attn_implementation="eager",
        use_cache=False,
    )
    return LlamaForCausalLM(config), torch.randint(0, 1000, (1, 16))


def step_ms(step: Callable[[], object], around: Callable[[], AbstractContextManager[Any]]) -> float:
    """The CPU time of one step inside a context that is already open, in milliseconds."""
    with around():
        started = time.process_time()
        step()
        return (time.process_time() - started) * 1e3


def recorded_ms(step: Callable[[], object]) -> float:
    """The CPU time of one step under the profiler with shapes, until its events are there, in milliseconds."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    profiler = torch.profiler.profile(activities=activities, record_shapes=True)
    profiler.start()
    started = time.process_time()
    step()
    profiler.stop()
    events = profiler.profiler.kineto_results.events()
    calls = {(event.name(), str(event.shapes()), str(event.concrete_inputs())) for event in events}
    if not calls:
        raise RuntimeError("the profiler recorded nothing")
    return (time.process_time() - started) * 1e3


@contextmanager
def by_python_alone(counter: FlopCounter) -> Iterator[None]:
    """Counts as where the native part was not built."""
    with mock.patch.object(native, "load", return_value=None), counter:
        yield


def main() -> None:
    """Prints one line per way of watching, for the forward pass alone and with the backward pass."""
    torch.set_num_threads(1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    model, data = tiny_model()
    counter, python_alone = FlopCounter(model), FlopCounter(model)
    if native.load() is None:
        print("the native part is not built: whystall doctor --build-counter")
    activities = [torch.profiler.ProfilerActivity.CPU]
    ways: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "nothing": nullcontext,
        "whystall, counting": lambda: counter,
        "whystall, Python alone": lambda: by_python_alone(python_alone),
        "whystall, timing": lambda: Stopwatch(model),
        "pass-through": PassThrough,
        "shortest way": ShortestWay,
        "FlopCounterMode": lambda: FlopCounterMode(display=False),
        "torch.profiler": lambda: torch.profiler.profile(activities=activities),
        "torch.profiler, FLOPs": lambda: torch.profiler.profile(activities=activities, with_flops=True),
    }

    def forward() -> None:
        with torch.no_grad():
            model(data)

    def forward_and_backward() -> None:
        model(data).logits.sum().backward()

    for step in (forward, forward_and_backward):
        times: dict[str, list[float]] = {way: [] for way in [*ways, "profiler, to events"]}
        for _ in range(rounds + 1):
            for way, around in ways.items():
                times[way].append(step_ms(step, around))
            times["profiler, to events"].append(recorded_ms(step))
            step()  # the profiler tidies up while the next step runs
        base = times["nothing"][1:]
        print(f"{step.__name__:24} {'median':>9} {'ratio':>7} {'min ratio':>10}")
        for way, found in times.items():
            median = statistics.median(found[1:])
            ratio = statistics.median(found[1:]) / statistics.median(base)
            print(f"  {way:22} {median:6.1f} ms {ratio:7.2f} {min(found[1:]) / min(base):10.2f}")


if __name__ == "__main__":
    main()
