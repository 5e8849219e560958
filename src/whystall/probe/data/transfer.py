"""Pinning a batch and copying it to the device, where there is one.

Written from PyTorch's documentation and not tested on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from whystall.probe.clock import HostClock, measure
from whystall.probe.data.results import Device


def tensors_of(batch: Any) -> list[Any]:
    """The tensors of a batch, however it is nested."""
    import torch  # noqa: PLC0415 - takes seconds, and only probing needs it
    from torch.utils._pytree import tree_leaves  # noqa: PLC0415

    return [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]


def bytes_of(batch: Any) -> int:
    """Bytes of a batch's tensors."""
    return sum(int(one.nbytes) for one in tensors_of(batch))


def probe_transfer(batch: Any, *, seconds: float) -> Device | None:
    """The time to pin and copy a batch; ``None`` without a GPU."""
    import torch  # noqa: PLC0415 - takes seconds

    tensors = tensors_of(batch)
    if not torch.cuda.is_available() or not tensors:
        return None
    pinned = [one.pin_memory() for one in tensors]

    def copied(these: list[Any]) -> Callable[[], object]:
        def copy() -> None:
            for one in these:
                one.to("cuda", non_blocking=True)
            torch.cuda.synchronize()

        return copy

    clock = HostClock()
    return Device(
        name=str(torch.cuda.get_device_name()),
        pin_ns=measure(lambda: [one.pin_memory() for one in tensors], clock, seconds=seconds).median_ns,
        copy_pinned_ns=measure(copied(pinned), clock, seconds=seconds).median_ns,
        copy_pageable_ns=measure(copied(tensors), clock, seconds=seconds).median_ns,
    )
