"""Whether steps take longer after the profiler had recorded some than before, and how much such times change anyhow."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.run_results import RecordedWindow
from whystall.analysis.step_errors import median_error

# The trace is written after a window: this many steps are left out.
_SETTLES: Final = 3
# Steps before a window that show whether steps had become longer already when it began.
_LEAD_IN: Final = 3
_FEWEST: Final = 10
_MOST_COMPARED: Final = 50
# With fewer other places, the variation without a recording is unknown.
_FEWEST_OTHERS: Final = 4


def recorded_windows(duration: NDArray[np.int64], profiled: NDArray[np.bool_], warm_up: int) -> list[RecordedWindow]:
    """The windows of a run with enough steps before and after them to compare; ``duration`` is of all steps.

    ``warm_up`` of the steps that were not profiled come first and are not counted.
    """
    edges = np.flatnonzero(np.diff(profiled.astype(np.int8), prepend=0, append=0))
    starts, ends = edges[::2], edges[1::2]
    plain = np.flatnonzero(~profiled)
    first = int(plain[warm_up]) if warm_up < len(plain) else len(duration)
    begins = np.append(first, ends + _SETTLES)
    stops = np.append(starts, len(duration))
    free = [duration[begin:stop] for begin, stop in zip(begins.tolist(), stops.tolist(), strict=True)]
    return [
        _window(int(starts[at]), free, at, int(np.count_nonzero(~profiled[ends[at] :])))
        for at in range(len(starts))
        if min(len(free[at]), len(free[at + 1])) >= _FEWEST
    ]


def _window(step: int, free: list[NDArray[np.int64]], at: int, left: int) -> RecordedWindow:
    before, after = free[at], free[at + 1]
    compared = min(len(before), len(after), _MOST_COMPARED)
    before = before[-compared:]
    # A profiler left switched on stays on: the fastest of all later stretches shows it.
    stretches = [*np.array_split(after, 2), *(later for later in free[at + 2 :] if len(later) >= _FEWEST)]
    return RecordedWindow(
        step=step,
        before_ns=round(float(np.median(before))),
        lead_in_ns=round(float(np.median(before[-_LEAD_IN:]))),
        after_ns=round(min(float(np.median(stretch)) for stretch in stretches)),
        error_ns=float(np.hypot(median_error(_floats(before)) or 0.0, median_error(_floats(after)) or 0.0)),
        usual_change=_usual_change(free, compared),
        steps_after=left,
    )


def _usual_change(free: list[NDArray[np.int64]], length: int) -> float | None:
    """The largest change between neighbouring stretches with no window between them, as a share.

    Short ones count as well: a change that passes after a dozen steps is the machine's, and may recur and stay.
    """
    changes = _changes(free, length)
    return max(changes + _changes(free, _FEWEST)) if len(changes) >= _FEWEST_OTHERS else None


def _changes(free: list[NDArray[np.int64]], length: int) -> list[float]:
    out: list[float] = []
    for steps in free:
        medians = [float(np.median(steps[at : at + length])) for at in range(0, len(steps) - length + 1, length)]
        out += [abs(later / max(earlier, 1.0) - 1) for earlier, later in pairwise(medians)]
    return out


def _floats(values: NDArray[np.int64]) -> NDArray[np.float64]:
    return values.astype(np.float64)
