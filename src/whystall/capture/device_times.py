"""Step times on the device: an event per step, polled later, never waited for."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

_MOST_PENDING: Final = 32


class DeviceTimes:
    """Events at the ends of steps. Without a CUDA (or HIP) device everything here does nothing.

    Tried on an H100 (torch 2.11): `tests/capture/test_on_a_gpu.py`.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._pending: deque[Any] = deque()
        self._last: Any = None
        self._latest_us = 0

    def mark(self) -> None:
        """Records an event on the current stream, where the device is in use already."""
        cuda = self._torch.cuda
        if not cuda.is_initialized():  # a job that has not used a device gets no query for one
            return
        event = cuda.Event(enable_timing=True)
        event.record()
        self._pending.append(event)
        while self._pending and (len(self._pending) > _MOST_PENDING or self._pending[0].query()):
            done = self._pending.popleft()
            if self._last is not None and done.query():
                self._latest_us = round(self._last.elapsed_time(done) * 1000)
            self._last = done if done.query() else None

    def latest_us(self) -> int:
        """The last step whose end is known to have been reached, in microseconds; 0 when there is none."""
        return self._latest_us
