"""When each engine step ran, on the client's clock: the step lines have durations and no times.

A step ends no later than the first of its tokens arrives, and no later than the next step begins. The latest such times
are taken, so that a delay of the way back counts as output or as gap and never as work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from whystall.serving.membership import Placed
from whystall.serving.records import ClientRequest, Ints

Flags = npt.NDArray[np.bool_]
_NEVER: Final = np.iinfo(np.int64).max // 2


@dataclass(frozen=True, slots=True)
class Timeline:
    """Begin and end of each step on the client's clock, and when the first client had a token of it or a later one.

    ``usual_gap_ns`` is the median time between busy steps, ``known`` the share of steps with a token of their own.
    """

    start_ns: Ints
    end_ns: Ints
    usual_gap_ns: int
    seen_ns: Ints
    known: float = 1.0


def place_steps(
    elapsed_ns: Ints, requests: Sequence[ClientRequest], placed: Sequence[Placed | None]
) -> Timeline | None:
    """The times of all steps; ``None`` where the client recorded no time of sending."""
    seen = np.full(len(elapsed_ns), _NEVER, dtype=np.int64)
    for request, one in zip(requests, placed, strict=True):
        if one is not None and request.sent_ns is not None:
            steps, times = _arrivals(request, one)
            np.minimum.at(seen, steps, request.sent_ns + times)
    if not (seen < _NEVER).any():
        return None
    end = _latest(seen, elapsed_ns)
    start = end - elapsed_ns
    gaps = start[1:] - end[:-1]
    first = np.minimum.accumulate(np.where(seen < _NEVER, seen, end)[::-1])[::-1]
    known = float((seen < _NEVER).mean())
    return Timeline(start, end, int(np.median(gaps)) if len(gaps) else 0, first, known)


def back_to_back(times: Timeline, busy: Flags) -> Ints:
    """The begin of each step without gaps: the end of the one before, where ``busy`` says that requests went on."""
    begin = times.start_ns.copy()
    begin[1:][busy] = times.end_ns[:-1][busy]
    return begin


def from_token_to_token(times: Timeline, busy: Flags) -> Timeline:
    """The timeline of a server whose log has a part of each step: a step begins when the one before it has ended.

    ``busy`` says for each step but the last whether requests went on from it into the next one.
    """
    return Timeline(back_to_back(times, busy), times.end_ns, 0, times.seen_ns, times.known)


def _arrivals(request: ClientRequest, placed: Placed) -> tuple[Ints, Ints]:
    """Steps with the times after sending at which the client had their tokens."""
    steps = np.concatenate([np.arange(first, end) for first, end in placed.emits])
    if len(steps) == len(request.token_ns):
        return steps, np.array(request.token_ns, dtype=np.int64)
    ends = (request.ttft_ns, request.latency_ns)
    return np.array((steps[0], steps[-1]), dtype=np.int64), np.array(ends, dtype=np.int64)


def _latest(seen: Ints, elapsed_ns: Ints) -> Ints:
    """The latest end of each step; steps after the last known one follow each other without a gap."""
    last = int(np.flatnonzero(seen < _NEVER)[-1])
    # end[k] <= end[k+1] - elapsed[k+1]: with the sum of durations taken off, a running minimum from the right.
    before = np.cumsum(elapsed_ns)
    shifted = np.minimum(seen, _NEVER)[: last + 1] - before[: last + 1]
    end = np.empty_like(elapsed_ns)
    end[: last + 1] = np.minimum.accumulate(shifted[::-1])[::-1] + before[: last + 1]
    end[last + 1 :] = end[last] + before[last + 1 :] - before[last]
    return end
