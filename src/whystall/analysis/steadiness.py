"""The representative of a recording's steps: the mean of the steady ones; where they differ, a usual and a slow one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

from whystall.analysis.results import Device, Ledger, Step

# The first two steps of a recording still fill queues and caches, the last is cut (reference: causes.md, "drop first 2
# + last"). If there are few, all are taken, except a last one that ends with its own events while others go on longer.
FEWEST_TO_DROP: Final = 6
_FEWEST_BEFORE_CUT: Final = 2
# Least ratio of the other steps' windows to the last one's; the spans of their own events differ by less.
_CUT: Final = 1.1
# With fewer steps the usual ones are unknown.
_FEWEST_TO_DIFFER: Final = 3
# Least ratio of a slow step to the fast quarter, and of slow steps to usual ones: a scatter of a tenth stays below.
_SLOW: Final = 1.2
_APART: Final = 1.25


@dataclass(frozen=True, slots=True)
class Steady:
    """The mean of steps: their number, their mean length, and its parts."""

    steps: int
    window_ns: int
    ledger: Ledger


@dataclass(frozen=True, slots=True)
class Unlike:
    """A usual and a slow step, how many steady steps there are, and how many of them are slow."""

    usual: Step
    slow: Step
    steps: int
    slow_steps: int


def steady(steps: Sequence[Step]) -> Sequence[Step]:
    """The steps that represent unrecorded ones: without the first two and the last, if there are enough.

    Steps that not every rank recorded represent nothing where there are others.
    """
    steps = [step for step in steps if not step.unshared] or steps
    if len(steps) < FEWEST_TO_DROP and _is_last_cut(steps):
        return steps[:-1]
    return steps[usual(len(steps))]


def usual(count: int) -> slice:
    """The steps of a recording with ``count`` of them that are like unrecorded ones.

    >>> usual(8), usual(4)
    (slice(2, -1, None), slice(0, None, None))
    """
    return slice(2, -1) if count >= FEWEST_TO_DROP else slice(0, None)


def _is_last_cut(steps: Sequence[Step]) -> bool:
    """Whether the last step has the same events as the others, but a shorter window: its tail was not recorded."""
    if len(steps) <= _FEWEST_BEFORE_CUT or steps[-1].window_ns > steps[-1].device_span_ns:
        return False
    *others, last = steps
    alike = all(last.device_span_ns * _CUT >= step.device_span_ns >= last.device_span_ns / _CUT for step in others)
    return alike and all(step.window_ns >= _CUT * last.window_ns for step in others)


def mean_step(steps: Sequence[Step]) -> Steady | None:
    """The mean of the steady steps, to the nanosecond; ``None`` without steps."""
    chosen = steady(steps)
    return mean_of(chosen) if chosen else None


def usual_ledger(device: Device) -> Ledger:
    """The ledger of a device's mean steady step; without steps that of the recording."""
    mean = mean_step(device.steps)
    return mean.ledger if mean is not None and mean.window_ns > 0 else device.ledger


def least_computing(devices: Sequence[Device]) -> Device | None:
    """The device that computes the smallest share of its time, as reports speak of it; ``None`` without a window."""
    return max(
        (device for device in devices if device.window_ns > 0),
        key=lambda device: (-usual_ledger(device).shares()["compute"], -device.rank, -device.device),
        default=None,
    )


def mean_of(chosen: Sequence[Step]) -> Steady:
    """The mean of steps, at least one, to the nanosecond."""
    totals = [sum(parts) for parts in zip(*(step.ledger.parts().values() for step in chosen), strict=True)]
    # rounded as a running sum, so that the parts add up to the window
    ends = [total // len(chosen) for total in accumulate(totals, initial=0)]
    means = [after - before for before, after in pairwise(ends)]
    ledger = Ledger(**dict(zip(chosen[0].ledger.parts(), means, strict=True)))
    return Steady(len(chosen), ledger.total_ns, ledger)


def unlike_steps(steps: Sequence[Step]) -> Unlike | None:
    """A usual and a slow one of the steady steps, where these differ by more than scatter; else ``None``."""
    chosen = steady(steps)
    if chosen and chosen[-1] is steps[-1] and chosen[-1].window_ns < (chosen[-1].host_ns or 0):
        chosen = chosen[:-1]  # nothing follows it: it may lack a pause that all others have
    if len(chosen) < _FEWEST_TO_DIFFER:
        return None
    limit = _SLOW * sorted(step.window_ns for step in chosen)[len(chosen) // 4]
    slow = [step for step in chosen if step.window_ns > limit]
    usual = [step for step in chosen if step.window_ns <= limit]
    if not slow or not usual:
        return None
    one, other = _middle(usual), _middle(slow)
    return Unlike(one, other, len(chosen), len(slow)) if other.window_ns >= _APART * one.window_ns else None


def _middle(steps: Sequence[Step]) -> Step:
    ordered = sorted(steps, key=lambda step: (step.window_ns, step.start_ns))
    return ordered[(len(ordered) - 1) // 2]
