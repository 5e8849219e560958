"""What parts of a convolutional network take on a CPU with their channels last, of what they take with them first.

    python benchmarks/bench_layouts.py   # some five minutes

Depthwise, pointwise and dense convolutions, normalisation in training and pooling in a grid of sizes, each in both
orders in alternation, forward alone and with the backward pass. What `compute.layout-conversion` expects of networks
with depthwise convolutions rests on this (`diagnosis/detectors/plain_layouts.py`).
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

BATCHES, CHANNELS, SIDES = (2, 16), (32, 96, 256), (14, 28, 56)
MOST_ELEMENTS = 1 << 23
MOST_OF_LARGE = 1 << 19
LARGE = ("15x15", "31x31")
ROUNDS = 7
KINDS: dict[str, Callable[[int], nn.Module]] = {
    "depthwise 3x3": lambda n: nn.Conv2d(n, n, 3, padding=1, groups=n),
    "depthwise 7x7": lambda n: nn.Conv2d(n, n, 7, padding=3, groups=n),
    "depthwise 15x15": lambda n: nn.Conv2d(n, n, 15, padding=7, groups=n),
    "depthwise 31x31": lambda n: nn.Conv2d(n, n, 31, padding=15, groups=n),
    "pointwise, as wide": lambda n: nn.Conv2d(n, n, 1),
    "pointwise, wider": lambda n: nn.Conv2d(n // 4, n, 1),
    "pointwise, narrower": lambda n: nn.Conv2d(n, n // 4, 1),
    "dense 3x3": lambda n: nn.Conv2d(n, n, 3, padding=1),
    "batch norm": nn.BatchNorm2d,
    "max pool 2x2": lambda _: nn.MaxPool2d(2),
}
ORDERS = (torch.contiguous_format, torch.channels_last)


def taken(layer: nn.Module, given: torch.Tensor, *, backward: bool) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    if backward:
        made = layer(given.requires_grad_())
        made.backward(torch.ones_like(made))  # a sum's gradient has no order of its own
    else:
        with torch.inference_mode():
            layer(given)
    return time.perf_counter() - began


def left(make: Callable[[int], nn.Module], shape: tuple[int, ...], *, backward: bool) -> float:
    """What channels last take, as a share of what channels first take: of medians."""
    layers = [make(shape[1]).to(memory_format=order) for order in ORDERS]
    wide = layers[0].in_channels if isinstance(layers[0], nn.Conv2d) else shape[1]
    inputs = [torch.randn(shape[0], wide, *shape[2:]).to(memory_format=order) for order in ORDERS]
    times: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        for at in range(2):
            times[at].append(taken(layers[at], inputs[at], backward=backward))
    first, last = (statistics.median(one[1:]) for one in times)
    return last / first


def main() -> None:
    """The command line."""
    print(f"{torch.get_num_threads()} threads\n")
    print("| layer | pass | lowest tenth | lower quarter | median | upper quarter | highest tenth | sizes |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    for kind, make in KINDS.items():
        for backward in (False, True):
            found = [
                left(make, (batch, channels, side, side), backward=backward)
                for batch, channels, side in itertools.product(BATCHES, CHANNELS, SIDES)
                if batch * channels * side * side <= (MOST_OF_LARGE if kind.endswith(LARGE) else MOST_ELEMENTS)
            ]
            tenths = statistics.quantiles(found, n=20)
            shown = " | ".join(f"{tenths[at]:.2f}" for at in (1, 4, 9, 14, 17))
            print(f"| {kind} | {'forward, backward' if backward else 'forward'} | {shown} | {len(found)} |", flush=True)


if __name__ == "__main__":
    main()
