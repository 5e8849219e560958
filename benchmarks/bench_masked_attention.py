"""What is left of attention on a CPU when what its mask hides is not computed: windows, groups, causal, unused keys.

    python benchmarks/bench_masked_attention.py

Of each shape: the time of attention with the mask over that of attention over what the mask leaves, cut as the remedies
of `compute.masked-attention` cut it, and the latter's share over the share of scores that is seen (in 32 x 32 groups,
as `whystall run` counts them): the rule's factors. Both forms run on the threads that torch has, in turn.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch.nn import functional

HEADS, HEAD = 8, 64
SCORES = 1 << 22
TIMES = 7
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def main() -> None:
    """Prints one line for each shape."""
    torch.manual_seed(0)
    print("form      direction  length  width   seen  masked ms  cut ms  left  left/seen")
    for trains in (False, True):
        for length in (512, 1024, 2048):
            at = torch.arange(length)
            for width in (32, 64, 128):
                _row("window", length, width, (at[:, None] - at).abs() < width, _in_windows(width), trains=trains)
            for width in (64, 128, 256):
                groups = (at[:, None] // width) == at // width
                _row("groups", length, width, groups, _in_groups(width), trains=trains)
            causal = at[:, None] >= at
            _row("causal", length, length, causal, _causal, trains=trains)


def _row(form: str, length: int, width: int, seen: torch.Tensor, cut: Attend, *, trains: bool) -> None:
    batch = max(SCORES // length**2, 1)
    given = [torch.randn(batch, HEADS, length, HEAD, requires_grad=trains) for _ in range(3)]
    masked = _seconds(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, attn_mask=seen), given)
    own = _seconds(cut, given)
    tile = length // 32
    share = float(seen.reshape(32, tile, 32, tile).any(3).any(1).float().mean())
    print(
        f"{form:9} {'and back' if trains else 'forward':9} {length:7} {width:6} {share:6.3f} {masked * 1e3:10.1f} "
        f"{own * 1e3:7.1f} {own / masked:5.2f} {own / masked / share:10.2f}",
        flush=True,
    )


def _in_windows(width: int) -> Attend:
    """Blocks of the window's width, each with its neighbours' keys; the ends hide what pads them."""

    def cut(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        batch, heads, length, size = query.shape
        own = torch.arange(width)[:, None] + width
        near = ((own - torch.arange(3 * width)).abs() < width).expand(length // width, -1, -1).clone()
        near[0, :, :width] = False
        near[-1, :, -width:] = False
        keys, values = (
            functional.pad(one, (0, 0, width, width)).unfold(2, 3 * width, width).transpose(-1, -2).flatten(1, 2)
            for one in (key, value)
        )
        queries = query.reshape(batch, -1, width, size)
        mask = near.repeat(heads, 1, 1)
        return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask[None]).reshape(query.shape)

    return cut


def _in_groups(width: int) -> Attend:
    def cut(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        each = [one.reshape(one.shape[0], -1, width, HEAD) for one in (query, key, value)]
        return functional.scaled_dot_product_attention(*each).reshape(query.shape)

    return cut


def _causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def _seconds(form: Attend, given: list[torch.Tensor]) -> float:
    taken = []
    for _ in range(TIMES + 1):
        began = time.perf_counter()
        out = form(*given)
        if out.requires_grad:
            out.sum().backward()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


if __name__ == "__main__":
    main()
