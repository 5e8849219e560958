"""What a bag of embeddings takes of a lookup and a sum on a CPU, forward and with the backward pass.

    python benchmarks/bench_bags.py

Of each shape: the time of `nn.EmbeddingBag` over that of `nn.Embedding` and a mean or sum, with dense and sparse
gradients: what `compute.redundant-work` expects of rows that are looked up only to be added up.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

SHAPES = ((30_000, 128, 256, 200), (30_000, 64, 512, 50), (100_000, 32, 1_024, 100), (5_000, 256, 128, 100))
TIMES = 9


def main() -> None:
    """Prints one line for each shape."""
    torch.manual_seed(0)
    print("  rows  wide  batch  places  MiB  mode  gradient  forward  and back")
    for rows, wide, batch, places in SHAPES:
        ids = torch.randint(rows, (batch, places))
        for mode in ("mean", "sum"):
            for sparse in (False, True):
                table = torch.nn.Embedding(rows, wide, sparse=sparse)
                bag = torch.nn.EmbeddingBag(rows, wide, mode=mode, sparse=sparse)

                def plain(table: torch.nn.Embedding = table, ids: torch.Tensor = ids, mode: str = mode) -> torch.Tensor:
                    out: torch.Tensor = getattr(table(ids), mode)(1)
                    return out

                def bagged(bag: torch.nn.EmbeddingBag = bag, ids: torch.Tensor = ids) -> torch.Tensor:
                    out: torch.Tensor = bag(ids)
                    return out

                with torch.no_grad():
                    forward = _seconds(bagged) / _seconds(plain)
                both = _seconds(_trained(bag, bagged)) / _seconds(_trained(table, plain))
                print(
                    f"{rows:6} {wide:5} {batch:6} {places:7} {batch * places * wide * 4 / (1 << 20):4.0f}  {mode:4}  "
                    f"{'sparse' if sparse else 'dense':8} {forward:8.2f} {both:9.2f}",
                    flush=True,
                )


def _trained(module: torch.nn.Module, form: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    def step() -> torch.Tensor:
        module.zero_grad()
        out = form()
        out.sum().backward()
        return out

    return step


def _seconds(form: Callable[[], torch.Tensor]) -> float:
    taken = []
    for _ in range(TIMES + 2):
        began = time.perf_counter()
        form()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[2:])


if __name__ == "__main__":
    main()
