"""What code that torch compiles for a CPU takes in single precision, of its time where one of its tensors is double.

python benchmarks/bench_doubles.py     # a minute; the machine should do nothing else
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

REPEATS = 20
ROWS, COLUMNS = 24 * 48 * 48, 32
CHAINS: dict[str, Callable[[Any, Any], Any]] = {
    "exponentials of distances": lambda x, c: torch.exp(-4 * (x[..., None] - c).square()).sum(-1),
    "products and sums": lambda x, c: ((x[..., None] * c + 1) * c - 2).sum(-1),
    "gelu": lambda x, c: torch.nn.functional.gelu(x[..., None] * c).sum(-1),
    "tanh": lambda x, c: torch.tanh(x[..., None] + c).sum(-1),
}


def milliseconds(chain: Callable[[Any, Any], Any], kind: torch.dtype) -> float:
    """The median of some calls of a chain, compiled for a tensor in single precision and one of this type."""
    compiled = torch.compile(chain)
    x, c = torch.randn(ROWS), torch.linspace(0, 4, COLUMNS, dtype=kind)
    spent = []
    for _ in range(REPEATS + 3):
        began = time.perf_counter()
        compiled(x, c)
        spent.append(time.perf_counter() - began)
    return statistics.median(spent[3:]) * 1e3


def main() -> None:
    """Prints a row per chain."""
    print("| chain | single | one double | left |\n|---|---|---|---|")
    for name, chain in CHAINS.items():
        single, double = milliseconds(chain, torch.float32), milliseconds(chain, torch.float64)
        print(f"| {name} | {single:.2f} ms | {double:.2f} ms | {single / double:.2f} |", flush=True)


if __name__ == "__main__":
    main()
