"""When each part of the ledger has its time: the same account as the ledger's sums, instant by instant, for drawing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl

from whystall.analysis.cpu import cpu_account
from whystall.analysis.device import DeviceAccount, account_for, devices_of
from whystall.analysis.host_states import HostEvents, host_events
from whystall.analysis.idle import IDLE_PARTS, idle_spans
from whystall.analysis.intervals import Spans
from whystall.analysis.kernel_classes import KernelClass, classify
from whystall.trace.model import Trace

_BUSY: Final = ("compute", "communication", "memory")
_DEVICE_PARTS: Final = (*_BUSY, *IDLE_PARTS)
# The part of an instant by the mask of classes that run: compute hides communication, and both hide copies.
_PART_OF_MASK: Final = np.array([0, 0, 1, 0, 2, 0, 1, 0], np.uint8)
SCHEMA: Final = {"ts_ns": pl.Int64, "duration_ns": pl.Int64, "part": pl.String}


def ledger_spans(
    trace: Trace, device: int, window: tuple[int, int], *, classes: Sequence[KernelClass] = ()
) -> pl.DataFrame:
    """The stretches of a window (ns, the trace's own clock): ``ts_ns``, ``duration_ns`` and the ledger's ``part``.

    They are in order, do not overlap, and cover the window from the device's first event to its last.
    """
    names, spans = _spans(trace, device, classes)
    inside = spans.within(*window)
    parts = np.array(names, dtype=object)[inside.part].tolist() if names else []
    columns = {"ts_ns": inside.begin, "duration_ns": inside.end - inside.begin, "part": parts}
    return pl.DataFrame(columns, schema=SCHEMA)


def _spans(trace: Trace, device: int, classes: Sequence[KernelClass]) -> tuple[tuple[str, ...], Spans]:
    """The names of parts, and the stretches in them."""
    none = np.zeros(0, np.int64)
    nothing: tuple[tuple[str, ...], Spans] = ((), Spans(none, none, none.astype(np.uint8)))
    if trace.device_events.is_empty():
        account = cpu_account(trace)
        return nothing if account is None else account.spans()
    events = devices_of(trace, classify(trace.device_events, classes).class_of).get(device)
    if events is None:
        return nothing
    host = host_events(trace, collectives=False)
    return _DEVICE_PARTS, _of_device(account_for(events, host), host)


def _of_device(account: DeviceAccount, host: HostEvents) -> Spans:
    timeline = account.timeline
    busy = np.flatnonzero(timeline.states != 0)
    idle = idle_spans(account.gaps, account.events.launches, host)
    return Spans.joined(
        [
            Spans(timeline.times[busy], timeline.times[busy + 1], _PART_OF_MASK[timeline.states[busy]]),
            Spans(idle.begin, idle.end, idle.part + np.uint8(len(_BUSY))),
        ]
    )
