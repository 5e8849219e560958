"""What the fused form of an optimizer leaves of its loop over parameters, on one thread of this CPU.

python benchmarks/bench_optimizers.py

The ratios stand in `src/whystall/vocabulary/optimizers.toml`; each time is the best of fifteen steps. In a job a step
of the optimizer begins with caches that hold what the backward pass needed: "cold" columns give the median after a pass
over 96 MiB between steps. What that adds to both forms stands in `compute.unfused-optimizer`'s thresholds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

SHAPES: dict[str, list[tuple[int, ...]]] = {
    "10 of 10,000": [(100, 100)] * 10,
    "10 of 589,824": [(768, 768)] * 10,
    "120 of 9,216 at most": [(96, 96), (96,)] * 60,
    "300 of 1,024": [(32, 32)] * 300,
}
KINDS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": torch.optim.SGD,
    "SGD, momentum": lambda p, **more: torch.optim.SGD(p, momentum=0.9, **more),
    "SGD, Nesterov, decay": lambda p, **more: torch.optim.SGD(
        p, momentum=0.9, nesterov=True, weight_decay=1e-4, **more
    ),
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "Adagrad": torch.optim.Adagrad,
}
TIMES = 15
OTHER = 24 << 20


def step_ms(
    kind: Callable[..., torch.optim.Optimizer], shapes: list[tuple[int, ...]], *, fused: bool, cold: bool = False
) -> float:
    """The best of some steps; cold: the median of steps after others' data went through the caches."""
    other = torch.zeros(OTHER if cold else 1)
    parameters = [nn.Parameter(torch.randn(*shape)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter) * 1e-3
    optimizer = kind(parameters, lr=0.1, fused=fused)
    optimizer.step()
    found = []
    for _ in range(TIMES):
        other.add_(1)
        begin = time.perf_counter()
        optimizer.step()
        found.append(time.perf_counter() - begin)
    return (statistics.median(found) if cold else min(found)) * 1e3


def main() -> None:
    """Print a table."""
    torch.set_num_threads(1)
    print("| optimizer | parameters | loop, ms | fused, ms | left | loop, cold | fused, cold | left |")
    print("|---|---|---|---|---|---|---|---|")
    for name, kind in KINDS.items():
        for shape, sizes in SHAPES.items():
            loop, fused = step_ms(kind, sizes, fused=False), step_ms(kind, sizes, fused=True)
            print(f"| {name} | {shape} | {loop:.2f} | {fused:.2f} | {fused / loop:.2f} |", end="")
            loop, fused = (step_ms(kind, sizes, fused=form, cold=True) for form in (False, True))
            print(f" {loop:.2f} | {fused:.2f} | {fused / loop:.2f} |")


if __name__ == "__main__":
    main()
