"""Cost of stragglers to a job, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from whystall.fleet.slowdowns import Share, Slowdowns
from whystall.report.format import UNKNOWN, duration, plural, share
from whystall.report.names import clean

_MOST_ROWS = 8  # of each table
_WORTH_TELLING = 1.005  # slowdowns below round to 1.00


def render_slowdowns(found: Slowdowns) -> str:
    """The text for a terminal."""
    parts = [summarize(found), "\n".join(_times(found)), "\n".join(_shares(found))]
    tables = (
        ("kind of operation", {clean(kind, 60): value for kind, value in found.by_operation.items()}),
        ("data-parallel rank", {str(rank): value for rank, value in found.by_dp_rank.items()}),
        ("stage", {str(stage): value for stage, value in found.by_stage.items()}),
        ("worker", {_worker(one): value for one, value in found.by_worker.items()}),
    )
    return "\n\n".join([*parts, *(_table(head, values) for head, values in tables)]) + "\n"


def summarize(found: Slowdowns) -> str:
    """The one sentence on top."""
    if found.slowdown < _WORTH_TELLING:
        return f"No stragglers to speak of: steps take {found.slowdown:.3f} times as long as without them."
    return (
        f"Stragglers make steps {found.slowdown:.2f} times as long: "
        f"{_seconds(found.simulated_s)} instead of {_seconds(found.ideal_s)}."
    )


def _times(found: Slowdowns) -> Iterator[str]:
    slowest = max(found.by_step, key=lambda step: (found.by_step[step], -step))
    counted = f"{plural(len(found.by_step), 'step')}, {plural(len(found.by_worker), 'worker')}"
    yield f"{counted}; measured {_seconds(found.measured_s)} a step"
    yield f"between operations, not explained: {share(found.unexplained - 1)}"
    if found.left_out_steps:
        yield f"left out, since their log is not whole: {plural(len(found.left_out_steps), 'step')}"
    yield f"slowest step: {slowest}, {found.by_step[slowest]:.2f} times as long"


def _shares(found: Slowdowns) -> Iterator[str]:
    workers = ", ".join(_worker(one) for one in found.slowest_workers[:_MOST_ROWS])
    yield f"slowest workers ({workers}) explain {_share(found.workers)}"
    yield f"the last stage explains {_share(found.last_stage)}"


def _share(one: Share) -> str:
    return (
        UNKNOWN
        if one.share is None
        else f"{share(one.share)} of the slowdown (with them as the ideal {_seconds(one.fixed_s)})"
    )


def _worker(worker: Sequence[int]) -> str:
    return f"rank {worker[0]}, stage {worker[1]}"


def _seconds(value: float) -> str:
    return duration(round(value * 1e9))


def _table(head: str, values: Mapping[str, float]) -> str:
    """The largest slowdowns first; each is with one part as recorded, and all others without stragglers."""
    ordered = sorted(values.items(), key=lambda item: -item[1])
    width = max(len(head), *(len(name) for name, _ in ordered[:_MOST_ROWS]))
    lines = [f"{head.ljust(width)}  slowdown"]
    lines += [f"{name.ljust(width)}  {value:8.3f}" for name, value in ordered[:_MOST_ROWS]]
    if len(ordered) > _MOST_ROWS:
        lines.append(f"and {len(ordered) - _MOST_ROWS} more, at most {ordered[_MOST_ROWS][1]:.3f}")
    return "\n".join(lines)
