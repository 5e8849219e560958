"""What a sparse gradient of an embedding takes on a CPU, going back and in an optimizer's step, for each row read.

    python benchmarks/bench_sparse_gradients.py

Rows are read evenly, or few of them most often (Zipf, 1.3): what `compute.dense-embedding` leaves of a step.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch

ROWS = 217_600
WIDTHS = (1, 12, 32, 64)
READ = (2_048, 12_288, 40_000)
TIMES = 10


def main() -> None:
    """Prints one line for each optimizer, distribution and width."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    print(f"optimizer   rows read  wide  us a row for {READ} rows read")
    for kind in (torch.optim.Adagrad, torch.optim.SparseAdam, torch.optim.SGD):
        for skewed in (False, True):
            for width in WIDTHS:
                each = [_ms(kind, width, _read(rng, read, skewed=skewed)) * 1e3 / read for read in READ]
                told = "".join(f"{one:8.2f}" for one in each)
                print(f"{kind.__name__:11} {'skewed' if skewed else 'evenly':9} {width:5} {told}", flush=True)


def _read(rng: np.random.Generator, read: int, *, skewed: bool) -> list[torch.Tensor]:
    drawn = [rng.zipf(1.3, read) * 2654435761 % ROWS if skewed else rng.integers(0, ROWS, read) for _ in range(TIMES)]
    return [torch.from_numpy(one.astype(np.int64)) for one in drawn]


def _ms(kind: type[torch.optim.Optimizer], width: int, read: list[torch.Tensor]) -> float:
    table = torch.nn.Embedding(ROWS, width, sparse=True)
    optimizer = kind(table.parameters(), lr=0.01)
    taken = []
    for ids in read:
        out = table(ids)
        gradient = torch.ones_like(out)
        began = time.perf_counter()
        optimizer.zero_grad()
        out.backward(gradient)
        optimizer.step()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[2:]) * 1e3


if __name__ == "__main__":
    main()
