"""Device times of a model's modules by events on the stream, beside those that `whystall model` finds by correlation.

python -m benchmarks.gpu.times OUT.json
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from benchmarks.gpu import models

import whystall

ROUNDS = 5
BIG = (("gpt_medium", torch.bfloat16), ("llama_small", torch.bfloat16), ("resnet_like", torch.float32),
       ("bert_base", torch.bfloat16), ("unet_like", torch.float32))  # fmt: skip


def by_events(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, float]:
    """Milliseconds between events before and after each module's forward pass, and of the phases; medians."""
    found: dict[str, list[float]] = defaultdict(list)
    stepper = torch.optim.AdamW(model.parameters())
    for bare in (True, False):  # phases without hooks, modules with them
        marks: dict[str, list[Any]] = defaultdict(list)

        def mark(name: str, marks: dict[str, list[Any]] = marks) -> None:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            marks[name].append(event)

        hooks: list[Any] = []
        for name, module in model.named_modules() if not bare else ():
            hooks.append(module.register_forward_pre_hook(lambda *_, name=name: mark(name)))
            hooks.append(module.register_forward_hook(lambda *_, name=name: mark(name)))
        for _ in range(ROUNDS + 2):
            stepper.zero_grad()
            torch.cuda._sleep(300_000_000)  # noqa: SLF001 - the host runs ahead: no gap of its making lies between
            mark("forward")
            output = model(*args, **kwargs)
            loss = output if isinstance(output, torch.Tensor) else output.loss
            mark("forward")
            mark("backward")
            loss.backward()
            mark("backward")
            mark("optimizer")
            stepper.step()
            mark("optimizer")
            torch.cuda.synchronize()
        for name, events in marks.items():
            pairs = list(zip(events[::2], events[1::2], strict=True))
            each = len(pairs) // (ROUNDS + 2)
            if bare or name not in ("forward", "backward", "optimizer"):
                rounds = [
                    sum(a.elapsed_time(b) for a, b in pairs[i * each : (i + 1) * each]) for i in range(2, ROUNDS + 2)
                ]
                found[name] = rounds
        for hook in hooks:
            hook.remove()
    return {name: statistics.median(rounds) for name, rounds in found.items()}


def main() -> None:
    """Measures both ways."""
    told = {}
    for name, dtype in BIG:
        made = list(getattr(models, name)())
        model = made.pop(0).cuda().to(dtype)
        kwargs = made.pop() if isinstance(made[-1], dict) else {}

        def moved(value: Any, dtype: torch.dtype = dtype) -> Any:
            value = value.cuda()
            return value.to(dtype) if value.is_floating_point() else value

        args = tuple(moved(one) for one in made)
        kwargs = {key: moved(one) for key, one in kwargs.items()}
        truth = by_events(model, args, kwargs)
        stepper = torch.optim.AdamW(model.parameters())
        found = whystall.model_profile(model, args, kwargs, optimizer=stepper, repeats=5)

        def times(profile: Any) -> dict[str, Any]:
            return {phase: getattr(profile, phase).time_ns for phase in ("forward", "backward", "optimizer")}

        told[name] = {
            "events_ms": truth,
            "whystall": times(found),
            "modules": {one.path: times(one) for one in found.modules},
            "flops": {phase: getattr(found, phase).executed_flops for phase in ("forward", "backward", "optimizer")},
            "untimed": found.untimed_because,
            "peak": torch.cuda.max_memory_allocated(),
        }
        for phase in ("forward", "backward", "optimizer"):
            ns = getattr(found, phase).time_ns
            said = "-" if ns is None else f"{ns / 1e6:8.3f}"
            print(f"{name:12} {phase:10} events {truth[phase]:8.3f} ms, whystall {said}")
        del model, stepper, args, kwargs
        torch.cuda.empty_cache()
        Path(sys.argv[1]).write_text(json.dumps(told))


if __name__ == "__main__":
    main()
