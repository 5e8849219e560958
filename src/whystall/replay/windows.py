"""The part of a large recording to replay: whole steps from its middle, up to a limit of events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from whystall.trace.model import Trace

Window = tuple[int, int]
"""From an instant to another, in nanoseconds on the trace's clock."""

# Every what-if plays the whole graph: this many events are tens of steps, and take some 10 ms each time.
MOST_EVENTS: Final = 400_000
_FEWEST_STEPS: Final = 4


def chosen_windows(traces: Sequence[Trace], most_events: int) -> list[Window | None]:
    """Per trace the window to replay; ``None``: all of it."""
    events = sum(_events(trace) for trace in traces)
    if events <= most_events:
        return [None for _ in traces]
    share = most_events / events
    return [_steps_window(trace, share) if len(trace.steps) > 1 else _first_part(trace, share) for trace in traces]


def _events(trace: Trace) -> int:
    return len(trace.host_order) + len(trace.device_events)


def _steps_window(trace: Trace, share: float) -> Window:
    start = np.sort(trace.steps["ts_ns"].to_numpy())
    count = len(start)
    kept = min(max(round(count * share), _FEWEST_STEPS), count)
    first = (count - kept) // 2
    last = first + kept
    end = int(start[last]) if last < count else int((trace.steps["ts_ns"] + trace.steps["duration_ns"]).max())  # type: ignore[arg-type]
    return int(start[first]), end


def _first_part(trace: Trace, share: float) -> Window:
    tables = (trace.operators, trace.annotations, trace.python_functions, trace.runtime_calls)
    starts = np.sort(np.concatenate([table["ts_ns"].to_numpy() for table in tables]))
    if not len(starts):
        starts = trace.device_events["ts_ns"].to_numpy()
    return int(starts[0]), int(starts[min(int(len(starts) * share), len(starts) - 1)]) + 1
