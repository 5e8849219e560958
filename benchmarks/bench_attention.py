"""What fused attention leaves of written-out attention on a CPU, by head size, length of sequences and direction.

    python benchmarks/bench_attention.py

Of each shape: the time of torch's scaled dot product attention over that of the batched products of the written-out
form, and what the latter loses beyond it, over its passes (division, softmax, softmax backward). Both forms run on the
threads that torch has, in turn; the parts are self times under torch's own profiler. They are what
`compute.unfused-attention` takes from a job without an accelerator.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

HEADS = (16, 32, 64, 128)
LENGTHS = ((128, 32), (256, 16), (512, 8), (1024, 8), (2048, 4))
PASSES = ("aten::div", "aten::_softmax", "aten::_softmax_backward_data")
TIMES = 7
PROFILED = 3


def main() -> None:
    """Prints one line for each shape."""
    torch.manual_seed(0)
    print("direction   head  length  scores MiB  fused ms  written ms  fused/products  lost/passes")
    for trains in (True, False):
        for size in HEADS:
            for length, heads in LENGTHS:
                _row(size, length, heads, trains=trains)


def _row(size: int, length: int, heads: int, *, trains: bool) -> None:
    given = [torch.randn(2, heads // 2, length, size, requires_grad=trains) for _ in range(3)]
    fused, written = (_seconds(form, given) for form in (functional.scaled_dot_product_attention, _written))
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        for _ in range(PROFILED):
            _pass(_written, given)
    own = {event.key: event.self_cpu_time_total / PROFILED / 1e6 for event in recorded.key_averages()}
    passes = sum(own.get(name, 0.0) for name in PASSES)
    direction = "and back" if trains else "forward"
    print(
        f"{direction:10} {size:5} {length:7} {heads * length**2 * 4 / (1 << 20):11.1f} {fused * 1e3:9.2f} "
        f"{written * 1e3:11.2f} {fused / own['aten::bmm']:15.2f} {(written - fused) / passes:12.2f}"
    )


def _written(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return torch.softmax(query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5, -1) @ value


def _pass(form: Callable[..., torch.Tensor], given: Sequence[torch.Tensor]) -> None:
    if not given[0].requires_grad:
        form(*given)
        return
    form(*given).sum().backward()


def _seconds(form: Callable[..., torch.Tensor], given: Sequence[torch.Tensor]) -> float:
    taken = []
    for _ in range(TIMES + 2):
        began = time.perf_counter()
        _pass(form, given)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[2:])


if __name__ == "__main__":
    main()
