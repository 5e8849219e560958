"""A real training run, and the most that it held: asked for by `python -m benchmarks.memory`, each in its own process.

What torch's CPU allocator holds is told by the profiler's memory events. They miss what another thread frees, so that
runs of several ranks are measured by a library that is loaded before all others and counts what torch's allocator asks
the C library for; beside torch it counts the code that oneDNN generates.

python -m benchmarks.memory.truth JOB OPTIMIZER DTYPE STRATEGY
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.profiler import ProfilerActivity, profile

STEPS = 3
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.01),
    "sgd-momentum": lambda weights: torch.optim.SGD(weights, lr=0.01, momentum=0.9),
    "adamw-foreach": lambda weights: torch.optim.AdamW(weights, foreach=True),
}


def train(job: str, optimizer: str, dtype: str, strategy: str) -> None:
    """A few steps, as a script has them."""
    file, _, name = job.partition(".")
    made = list(getattr(import_module(f"benchmarks.memory.{file}"), name)())
    model = made.pop(0)
    kwargs = made.pop() if isinstance(made[-1], dict) else {}
    if dtype == "bf16":
        model.to(torch.bfloat16)
        made = [_half(one) for one in made]
        kwargs = {name: _half(one) for name, one in kwargs.items()}
    if strategy == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    elif strategy == "fsdp2":
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - needed here alone

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    stepper = OPTIMIZERS[optimizer](model.parameters())
    for _ in range(STEPS):
        stepper.zero_grad()
        output = model(*made, **kwargs)
        loss = output if isinstance(output, torch.Tensor) else output.loss
        loss.backward()
        stepper.step()


def _half(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.bfloat16) if value.is_floating_point() else value


def by_profiler(run: Callable[[], None]) -> int:
    """The most bytes that torch's allocator held while ``run`` ran, by its own events."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return max(int(one["args"]["Total Allocated"]) for one in events if one.get("name") == "[memory]")


def by_hook(run: Callable[[], None], library: str) -> int:
    """The same by the library that was loaded before all others."""
    hook = ctypes.CDLL(library)
    hook.hook_level.restype = hook.hook_peak.restype = ctypes.c_size_t
    before = hook.hook_level()
    hook.hook_reset()
    run()
    return int(hook.hook_peak() - before)


def main() -> None:
    """Prints the peak; of several ranks that of each."""
    job, optimizer, dtype, strategy = sys.argv[1:5]
    torch.manual_seed(int(os.environ.get("RANK", "0")))

    def run() -> None:
        train(job, optimizer, dtype, strategy)

    if strategy == "none":
        print(f"peak {by_profiler(run)}")
        return
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    print(f"peak {by_hook(run, os.environ['LD_PRELOAD'])}", flush=True)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
