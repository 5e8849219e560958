"""Copies within a device's memory, small to large: its real bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from whystall.errors import UsageError
from whystall.hardware.calibration import Copy
from whystall.probe.clock import measure
from whystall.probe.device import ProbedDevice

CPU_SIZES: Final = (64 << 10, 1 << 20, 16 << 20, 128 << 20)
GPU_SIZES: Final = (64 << 10, 1 << 20, 16 << 20, 128 << 20, 1 << 30)


def probe_copy(
    device: ProbedDevice,
    *,
    sizes: Sequence[int] | None = None,
    seconds: float = 0.2,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Copy]:
    """Copies of each size in bytes; every byte is read once and written once.

    Raises ``UsageError`` where the device's memory does not hold two tensors of the smallest size.
    """
    torch = device.torch
    found: list[Copy] = []
    for size in sizes or (CPU_SIZES if device.kind == "cpu" else GPU_SIZES):
        progress(f"copies of {size >> 10} KiB")
        try:
            source = torch.ones(size, dtype=torch.uint8, device=device.device)
            target = torch.zeros_like(source)
        except (RuntimeError, MemoryError) as error:
            if not found:
                raise UsageError(f"no memory for two tensors of {size} bytes: {str(error)[:200]}") from None
            break
        with torch.inference_mode():
            timing = measure(lambda: target.copy_(source), device.clock, seconds=seconds)  # noqa: B023 - called here
        found.append(
            Copy(
                bytes=size,
                repeats=timing.repeats,
                best_ns=timing.best_ns,
                median_ns=timing.median_ns,
                bytes_per_s=2 * size / (timing.best_ns / 1e9),
            )
        )
    return found
