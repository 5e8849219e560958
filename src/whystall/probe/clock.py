"""How long a call takes, on the host's clock or the device's."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

FEWEST: Final = 5
MOST: Final = 1000
WARM_UPS: Final = 2


@dataclass(frozen=True, slots=True)
class Timing:
    """Repeats of one call."""

    repeats: int
    best_ns: int
    median_ns: int


class Clock(Protocol):
    """Times one call at a time."""

    def time_ns(self, call: Callable[[], object]) -> int:
        """Nanoseconds from the start of ``call`` until its work is done."""


class HostClock:
    """For work that is done when the call returns."""

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now = now

    def time_ns(self, call: Callable[[], object]) -> int:
        """Nanoseconds that the call takes."""
        start = self._now()
        call()
        return self._now() - start


class DeviceClock:
    """For work on a CUDA or ROCm device: the time between two events around the call on its stream.

    Written from the documentation of ``torch.cuda.Event``; not tested without a device.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def time_ns(self, call: Callable[[], object]) -> int:
        """Nanoseconds on the device, whose resolution is about half a microsecond."""
        cuda = self._torch.cuda
        before, after = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        before.record()
        call()
        after.record()
        after.synchronize()
        return int(before.elapsed_time(after) * 1e6)  # it answers in milliseconds


def measure(call: Callable[[], object], clock: Clock, *, seconds: float) -> Timing:
    """Repeats of ``call`` for about ``seconds`` of its own time, after two that warm up; at least five."""
    for _ in range(WARM_UPS):
        call()
    spent = 0
    times: list[int] = []
    while len(times) < FEWEST or (spent < seconds * 1e9 and len(times) < MOST):
        taken = max(clock.time_ns(call), 1)
        times.append(taken)
        spent += taken
    return Timing(len(times), min(times), round(statistics.median(times)))
