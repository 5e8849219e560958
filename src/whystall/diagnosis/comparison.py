"""What changed between two runs: the step, the parts of its ledger, operators, kernels, modules, and the causes.

Everything is per step, so that recordings of different length compare; names align what is compared. A change counts as
one only beyond its own noise: that of a part of the ledger is how far the part's mean over the steps is known (95 %);
of what else the device spends time on, the busy time's, which a part of it has in proportion to the root of its share
(times of calls that vary independently); and either has what runs of the same code differ by. The median step decides;
where a cause is named that happens now and then, which no median shows, the mean step does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec
import numpy as np

from whystall.analysis.paired import Interval
from whystall.analysis.results import Kernel, Module, Operator
from whystall.analysis.run_results import RunSummary
from whystall.analysis.step_errors import FEWEST_STEPS
from whystall.diagnosis.catalogue import causes
from whystall.diagnosis.cause_changes import CauseChange, Judged, cause_changes, named_causes, what_changed
from whystall.diagnosis.causes import Statistic
from whystall.diagnosis.comparability import Placed, comparability, ranks_of
from whystall.diagnosis.count_changes import CountChange, Counted, count_changes
from whystall.diagnosis.sides import (
    SIGMAS,
    RunSteps,
    Side,
    other_cores,
    run_steps,
    run_to_run,
    side,
    speedup,
    usual_steps,
)

_NEGLIGIBLE_NS = 1_000
# What others use of the machine is told from this on.
_MANY_CORES = 0.1
# What the statistic that does not decide is said to show must be surer: 99 % of a normal distribution.
_SURER_SIGMAS = 2.576


Kind = Literal["ledger", "operator", "kernel", "module"]
_Noise = Callable[[str], float]


class Recorded(Judged, Counted, Placed, Protocol):
    """What of a report is compared."""

    @property
    def operators(self) -> Sequence[Operator]:
        """Operators by name."""

    @property
    def kernels(self) -> Sequence[Kernel]:
        """Device events by name."""

    @property
    def modules(self) -> Sequence[Module]:
        """Modules by path."""

    @property
    def run(self) -> Sequence[RunSummary]:
        """Whole runs, from their samples."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Something that both runs have, or one: its time per step in each (``None``: not there)."""

    kind: Kind
    name: str
    base_ns: int | None
    candidate_ns: int | None
    delta_ns: int
    beyond_noise: bool


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What changed from the base to the candidate. ``speedup`` above 1: the candidate's step is shorter.

    It is by the ``statistic`` that decides; ``mean`` and ``median`` hold both, with intervals where enough steps were
    seen. ``pairs`` counts the runs of each side. ``counts`` are of a step. ``incomparable`` says why times of the two
    cannot be held against each other (another machine, number of ranks or size of batches): then no speed-up is told.
    """

    schema: Literal["whystall.comparison/1"] = "whystall.comparison/1"
    base: Side
    candidate: Side
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    significant: bool
    summary: str
    causes: list[CauseChange]
    ledger: list[Change]
    operators: list[Change]
    kernels: list[Change]
    modules: list[Change]
    warnings: list[str]
    statistic: Statistic = "median"
    pairs: int = 1
    mean: Interval | None = None
    median: Interval | None = None
    counts: list[CountChange] = []
    incomparable: list[str] = []


def compare_reports(
    base: Recorded,
    candidate: Recorded,
    names: tuple[str, str],
    again: Sequence[tuple[Recorded, Recorded]] = (),
) -> Comparison:
    """The comparison of two reports; ``names`` are what they are called.

    ``again`` are further pairs of runs of the same two: what is noise is then measured. Tables are of the first pair.
    """
    statistic = _deciding(base, candidate)
    pairs = [(run_steps(one), run_steps(other)) for one, other in ((base, candidate), *again)]
    sides = [one for one, _ in pairs], [other for _, other in pairs]
    before, after = side(names[0], sides[0], statistic), side(names[1], sides[1], statistic)
    known = comparability(base, candidate)
    # Of what cannot be compared nothing is said that could be taken for a comparison.
    timed = ([], []) if known.reasons else sides
    ratio, interval = speedup(*timed, statistic) or (None, None)
    both = {key: (speedup(*timed, key) or (None, None))[1] for key in _STATISTICS}
    changes = {kind: _changes(kind, base, candidate, judged=not known.reasons) for kind in _TIMES}
    comparison = Comparison(
        base=before,
        candidate=after,
        speedup=ratio,
        speedup_low=interval.low if interval else None,
        speedup_high=interval.high if interval else None,
        significant=_is_beyond(interval),
        statistic=statistic,
        pairs=len(pairs),
        mean=both["mean"],
        median=both["median"],
        summary="",
        causes=cause_changes(base, candidate),
        ledger=changes["ledger"],
        operators=changes["operator"],
        kernels=changes["kernel"],
        modules=changes["module"],
        warnings=[
            *known.reasons,
            *known.notes,
            *([f"not known of both, and taken to be the same: {', '.join(known.unknown)}"] if known.unknown else []),
            *_warnings(base, candidate, before, after),
            *_otherwise(timed, statistic),
        ],
        counts=count_changes(base, candidate, amounts=known.same_work),
        incomparable=known.reasons,
    )
    return msgspec.structs.replace(comparison, summary=_summary(comparison))


_STATISTICS: tuple[Statistic, ...] = ("mean", "median")


def _deciding(base: Recorded, candidate: Recorded) -> Statistic:
    """The mean where either side has a cause that happens now and then."""
    named = {*named_causes(base), *named_causes(candidate)}
    return "mean" if any(known.statistic == "mean" for cause in named if (known := causes().get(cause))) else "median"


def _is_beyond(interval: Interval | None) -> bool:
    return interval is not None and not interval.low <= 1 <= interval.high


def _otherwise(sides: tuple[Sequence[RunSteps | None], Sequence[RunSteps | None]], statistic: Statistic) -> list[str]:
    """What the statistic that does not decide shows where the one that does shows nothing."""
    decided = (speedup(*sides, statistic) or (None, None))[1]
    other: Statistic = "median" if statistic == "mean" else "mean"
    found = (speedup(*sides, other, _SURER_SIGMAS) or (None, None))[1]
    if found is None or _is_beyond(decided) or not _is_beyond(found):
        return []
    why = "which counts what happens now and then" if other == "mean" else "which leaves out what happens now and then"
    return [f"the {other} step, {why}, is {found.ratio:.2f} times as fast ({found.low:.2f} to {found.high:.2f})"]


def names(kind: Kind, *reports: Recorded) -> set[str]:
    """What can be compared under a name: everything of the kind that one of the reports holds."""
    return {name for report in reports for name in _TIMES[kind](report)}


def _count(report: Recorded, rank: int) -> int:
    """How many steps a rank's trace holds (1 without marks)."""
    return max((len(device.steps) for device in report.devices if device.rank == rank), default=1) or 1


def _summed(report: Recorded, rows: Iterable[tuple[int, str, int]]) -> dict[str, int]:
    """Times by name, per step and averaged over ranks, from rank, name and time of a whole trace."""
    sums: dict[str, float] = {}
    steps: dict[int, int] = {}
    for rank, name, ns in rows:
        if rank not in steps:
            steps[rank] = _count(report, rank)
        sums[name] = sums.get(name, 0.0) + ns / steps[rank]
    return {name: round(value / ranks_of(report)) for name, value in sums.items()}


def _ledger(report: Recorded) -> dict[str, int]:
    steps = usual_steps(report)
    if not steps:
        return _summed(
            report, ((device.rank, part, ns) for device in report.devices for part, ns in device.ledger.parts().items())
        )
    names = steps[0].ledger.parts()
    return {part: round(sum(step.ledger.parts()[part] for step in steps) / len(steps)) for part in names}


def _operators(report: Recorded) -> dict[str, int]:
    on_device = any(device.kind != "cpu" for device in report.devices)
    rows = ((row.rank, row.name, row.device_self_ns if on_device else row.host_self_ns) for row in report.operators)
    return _summed(report, rows)


def _kernels(report: Recorded) -> dict[str, int]:
    return _summed(report, ((row.rank, row.name, row.total_ns) for row in report.kernels))


def _modules(report: Recorded) -> dict[str, int]:
    rows = ((row.rank, row.path, row.forward_self_ns + row.backward_self_ns) for row in report.modules)
    return _summed(report, rows)


_TIMES: Mapping[Kind, Callable[[Recorded], dict[str, int]]] = {
    "ledger": _ledger,
    "operator": _operators,
    "kernel": _kernels,
    "module": _modules,
}


def _uncertainty(values: Sequence[int]) -> float:
    """Half the width of the interval (95 %) of the values' mean; 0 for too few to tell."""
    if len(values) < FEWEST_STEPS:
        return 0.0
    return float(SIGMAS * np.std(values, ddof=1) / np.sqrt(len(values)))


def _noise(kind: Kind, report: Recorded, times: Mapping[str, int]) -> _Noise:
    """How far each time of a side is known, by name."""
    if kind == "ledger":
        steps = usual_steps(report)
        return lambda name: _uncertainty([step.ledger.parts().get(name, 0) for step in steps])
    busy = [step.busy_ns for device in report.devices for step in device.steps]
    whole = _uncertainty(busy)
    mean = max(sum(busy) / max(len(busy), 1), 1.0)
    return lambda name: whole * float(np.sqrt(times.get(name, 0) / mean))


def _changes(kind: Kind, base: Recorded, candidate: Recorded, *, judged: bool) -> list[Change]:
    """What both have by name, the largest change first; what neither spends time on is left out."""
    before, after = _TIMES[kind](base), _TIMES[kind](candidate)
    base_noise, candidate_noise = _noise(kind, base, before), _noise(kind, candidate, after)
    sways = run_to_run(base), run_to_run(candidate)
    rows = []
    for name in dict.fromkeys((*before, *after)):
        first, second = before.get(name), after.get(name)
        delta = (second or 0) - (first or 0)
        if max(first or 0, second or 0) < _NEGLIGIBLE_NS:
            continue
        steps = np.hypot(base_noise(name), candidate_noise(name))
        noise = np.hypot(steps, SIGMAS * np.hypot(sways[0] * (first or 0), sways[1] * (second or 0)))
        rows.append(
            Change(
                kind=kind,
                name=name,
                base_ns=first,
                candidate_ns=second,
                delta_ns=delta,
                beyond_noise=judged and abs(delta) >= _NEGLIGIBLE_NS and bool(abs(delta) > noise),
            )
        )
    return sorted(rows, key=lambda row: (-abs(row.delta_ns), row.name))


def _warnings(base: Recorded, candidate: Recorded, before: Side, after: Side) -> list[str]:
    out = []
    if before.measured_by != after.measured_by:
        out.append(f"one side is measured by {before.measured_by}, the other by {after.measured_by}")
    if 0 < min(before.steps, after.steps) < FEWEST_STEPS:
        out.append("too few steps to tell a change from noise")
    for report, which in ((base, "base"), (candidate, "candidate")):
        if not any(device.kind != "cpu" for device in report.devices) and other_cores(report) >= _MANY_CORES:
            out.append(f"other programs used {other_cores(report):.1f} cores of the machine beside the {which}")
    return out


def _not_comparable(comparison: Comparison) -> str:
    """Why times do not compare, and what counts say."""
    text = f"Times are not comparable: {'; '.join(comparison.incomparable)}. "
    if not comparison.counts:
        return f"{text}No counts are known of both."
    changed = [row for row in comparison.counts if row.certain]
    if not changed:
        return f"{text}Counts compare, and are as before."
    said = [f"{row.name.replace('_', ' ')} went from {row.base:,} to {row.candidate:,} a step" for row in changed]
    return f"{text}Counts compare: {'; '.join(said)}."


def _summary(comparison: Comparison) -> str:
    if comparison.incomparable:
        return _not_comparable(comparison)
    if comparison.speedup is None:
        return "One of the two has no steps to compare."
    lengths = [_ms(side.step_ns) for side in (comparison.candidate, comparison.base)]
    text = f"The candidate's step takes {lengths[0]} where the base's takes {lengths[1]}"
    text += f", by the {comparison.statistic}" if comparison.statistic == "mean" else ""
    if comparison.speedup_low is None or comparison.speedup_high is None:
        text += f": {comparison.speedup:.2f} times as fast (too few steps for an interval)"
    elif not comparison.significant:
        text += ": no change beyond the noise "
        text += f"({comparison.speedup_low:.2f} to {comparison.speedup_high:.2f} times as fast)"
        text += _what_is_needed(comparison.speedup_high / comparison.speedup - 1, comparison.pairs)
    else:
        text += (
            f": {comparison.speedup:.2f} times as fast ({comparison.speedup_low:.2f} to {comparison.speedup_high:.2f})"
        )
    text += what_changed(comparison.causes)
    part = next((row for row in comparison.ledger if row.name != "compute" and row.beyond_noise), None)
    if part is not None:
        text += f"; {part.name} went from {_ms(part.base_ns)} to {_ms(part.candidate_ns)} a step"
    if _are_strangers(comparison):
        text += ". No operator, kernel or module of one bears a name of the other's: these may be different programs"
    return f"{text}."


def _what_is_needed(least: float, pairs: int) -> str:
    """What it takes to tell a smaller change."""
    if pairs > 1:
        return f", in {pairs} pairs of runs"
    return (
        f"; one run of each tells no change below {least * 100:.0f} % from what two runs of the same code differ by: "
        "give further pairs of runs (--again)"
    )


def _are_strangers(comparison: Comparison) -> bool:
    """Whether both sides list what ran, and nothing by the same name."""
    rows = [*comparison.operators, *comparison.kernels, *comparison.modules]
    in_base = {row.name for row in rows if row.base_ns is not None}
    in_candidate = {row.name for row in rows if row.candidate_ns is not None}
    return bool(in_base and in_candidate) and in_base.isdisjoint(in_candidate)


def _ms(ns: int | None) -> str:
    return f"{(ns or 0) / 1e6:.4g} ms"
