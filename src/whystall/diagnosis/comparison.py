"""What changed between two runs: the step, the parts of its ledger, operators, kernels, modules, and the causes.

Everything is per step, so that recordings of different length compare; names align what is compared. A change counts as
one only beyond its own noise: that of a part of the ledger is how far the part's mean over the steps is known (95 %);
of what else the device spends time on, the busy time's, which a part of it has in proportion to the root of its share
(times of calls that vary independently).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec
import numpy as np

from whystall.analysis.results import Device, Kernel, Module, Operator, Step
from whystall.analysis.run_results import RunSummary
from whystall.diagnosis.catalogue import causes
from whystall.diagnosis.finding import Finding

# 95 % of a normal distribution.
_SIGMAS = 1.96
_MAD_TO_SIGMA = 1.4826
# The median of few values is known as well as the mean of fewer (asymptotic efficiency of the median, 2 / pi).
_MEDIAN_EFFICIENCY = 2 / np.pi
_FEWEST_STEPS = 3
_NEGLIGIBLE_NS = 1_000


Kind = Literal["ledger", "operator", "kernel", "module"]
_Noise = Callable[[str], float]


class Recorded(Protocol):
    """What of a report is compared."""

    @property
    def devices(self) -> Sequence[Device]:
        """Devices with their steps."""

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

    @property
    def findings(self) -> Sequence[Finding]:
        """The causes that were found."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two runs: its median step over all its ranks, and how well that is known (95 %)."""

    name: str
    steps: int
    step_ns: int | None
    low_ns: int | None
    high_ns: int | None
    measured_by: Literal["samples", "trace", "none"]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Something that both runs have, or one: its time per step in each (``None``: not there)."""

    kind: Kind
    name: str
    base_ns: int | None
    candidate_ns: int | None
    delta_ns: int
    beyond_noise: bool


class CauseChange(msgspec.Struct, frozen=True, kw_only=True):
    """A cause that one run has and the other has not, or that both have."""

    id: str
    title: str
    change: Literal["gone", "new", "stays"]
    base_gain: float | None
    candidate_gain: float | None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What changed from the base to the candidate. ``speedup`` above 1: the candidate's step is shorter."""

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


def compare_reports(base: Recorded, candidate: Recorded, names: tuple[str, str]) -> Comparison:
    """The comparison of two reports; ``names`` are what they are called."""
    before, after = _side(base, names[0]), _side(candidate, names[1])
    speedup, low, high = _speedup(before, after)
    significant = low is not None and high is not None and not low <= 1 <= high
    comparison = Comparison(
        base=before,
        candidate=after,
        speedup=speedup,
        speedup_low=low,
        speedup_high=high,
        significant=significant,
        summary="",
        causes=_causes(base, candidate),
        ledger=_changes("ledger", base, candidate),
        operators=_changes("operator", base, candidate),
        kernels=_changes("kernel", base, candidate),
        modules=_changes("module", base, candidate),
        warnings=_warnings(base, candidate, before, after),
    )
    return msgspec.structs.replace(comparison, summary=_summary(comparison))


def names(kind: Kind, *reports: Recorded) -> set[str]:
    """What can be compared under a name: everything of the kind that one of the reports holds."""
    return {name for report in reports for name in _TIMES[kind](report)}


def _side(report: Recorded, name: str) -> Side:
    measured: Literal["samples", "trace", "none"] = "samples"
    values = [ns for run in report.run if run.measured >= _FEWEST_STEPS for ns in run.durations_ns[run.warm_up :]]
    if not values:
        values, measured = [step.window_ns for step in _steps(report)], "trace"
    if not values:
        return Side(name=name, steps=0, step_ns=None, low_ns=None, high_ns=None, measured_by="none")
    array = np.array(values, np.float64)
    middle = float(np.median(array))
    spread = float(np.median(np.abs(array - middle))) * _MAD_TO_SIGMA
    wide = _SIGMAS * spread / np.sqrt(len(array) * _MEDIAN_EFFICIENCY)
    known = len(array) >= _FEWEST_STEPS
    return Side(
        name=name,
        steps=len(array),
        step_ns=round(middle),
        low_ns=round(middle - wide) if known else None,
        high_ns=round(middle + wide) if known else None,
        measured_by=measured,
    )


def _steps(report: Recorded) -> list[Step]:
    """The steps that stand for the others: without the first and the last of each device, which are cut or warm up."""
    out: list[Step] = []
    for device in report.devices:
        usual = [step for step in device.steps if not step.outlier]
        out += usual[1:-1] if len(usual) > _FEWEST_STEPS + 1 else usual
    return out


def _speedup(base: Side, candidate: Side) -> tuple[float | None, float | None, float | None]:
    if not base.step_ns or not candidate.step_ns:
        return None, None, None
    ratio = base.step_ns / candidate.step_ns
    bounds = (base.low_ns, base.high_ns, candidate.low_ns, candidate.high_ns)
    if any(bound is None for bound in bounds):
        return round(ratio, 4), None, None
    wide = ratio * np.hypot(_relative(base), _relative(candidate))
    return round(ratio, 4), round(float(ratio - wide), 4), round(float(ratio + wide), 4)


def _relative(side: Side) -> float:
    """Half the width of a side's interval over its middle."""
    if not side.step_ns or side.low_ns is None or side.high_ns is None:
        return 0.0
    return (side.high_ns - side.low_ns) / 2 / side.step_ns


def _count(report: Recorded, rank: int) -> int:
    """How many steps a rank's trace holds (1 without marks)."""
    return max((len(device.steps) for device in report.devices if device.rank == rank), default=1) or 1


def _ranks(report: Recorded) -> int:
    return max(len({device.rank for device in report.devices}), 1)


def _summed(report: Recorded, rows: Iterable[tuple[int, str, int]]) -> dict[str, int]:
    """Times by name, per step and averaged over ranks, from rank, name and time of a whole trace."""
    sums: dict[str, float] = {}
    steps: dict[int, int] = {}
    for rank, name, ns in rows:
        if rank not in steps:
            steps[rank] = _count(report, rank)
        sums[name] = sums.get(name, 0.0) + ns / steps[rank]
    return {name: round(value / _ranks(report)) for name, value in sums.items()}


def _ledger(report: Recorded) -> dict[str, int]:
    steps = _steps(report)
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
    if len(values) < _FEWEST_STEPS:
        return 0.0
    return float(_SIGMAS * np.std(values, ddof=1) / np.sqrt(len(values)))


def _noise(kind: Kind, report: Recorded, times: Mapping[str, int]) -> _Noise:
    """How far each time of a side is known, by name."""
    if kind == "ledger":
        steps = _steps(report)
        return lambda name: _uncertainty([step.ledger.parts().get(name, 0) for step in steps])
    busy = [step.busy_ns for device in report.devices for step in device.steps]
    whole = _uncertainty(busy)
    mean = max(sum(busy) / max(len(busy), 1), 1.0)
    return lambda name: whole * float(np.sqrt(times.get(name, 0) / mean))


def _changes(kind: Kind, base: Recorded, candidate: Recorded) -> list[Change]:
    """What both have by name, the largest change first; what neither spends time on is left out."""
    before, after = _TIMES[kind](base), _TIMES[kind](candidate)
    base_noise, candidate_noise = _noise(kind, base, before), _noise(kind, candidate, after)
    rows = []
    for name in dict.fromkeys((*before, *after)):
        first, second = before.get(name), after.get(name)
        delta = (second or 0) - (first or 0)
        if max(first or 0, second or 0) < _NEGLIGIBLE_NS:
            continue
        noise = np.hypot(base_noise(name), candidate_noise(name))
        rows.append(
            Change(
                kind=kind,
                name=name,
                base_ns=first,
                candidate_ns=second,
                delta_ns=delta,
                beyond_noise=abs(delta) >= _NEGLIGIBLE_NS and bool(abs(delta) > noise),
            )
        )
    return sorted(rows, key=lambda row: (-abs(row.delta_ns), row.name))


def _causes(base: Recorded, candidate: Recorded) -> list[CauseChange]:
    before, after = _named(base), _named(candidate)
    out = []
    for cause in dict.fromkeys((*before, *after)):
        change: Literal["gone", "new", "stays"] = "stays"
        if cause not in after:
            change = "gone"
        elif cause not in before:
            change = "new"
        known = causes().get(cause)
        out.append(
            CauseChange(
                id=cause,
                title=known.title if known is not None else cause,
                change=change,
                base_gain=before.get(cause),
                candidate_gain=after.get(cause),
            )
        )
    return out


def _named(report: Recorded) -> dict[str, float | None]:
    """The causes worth removing, with what that is worth."""
    return {
        finding.id: finding.gain.expected if finding.gain is not None else None
        for finding in report.findings
        if finding.severity != "info"
    }


def _warnings(base: Recorded, candidate: Recorded, before: Side, after: Side) -> list[str]:
    out = []
    if before.measured_by != after.measured_by:
        out.append(f"one side is measured by {before.measured_by}, the other by {after.measured_by}")
    if 0 < min(before.steps, after.steps) < _FEWEST_STEPS:
        out.append("too few steps to tell a change from noise")
    if _ranks(base) != _ranks(candidate):
        out.append(f"the base has {_ranks(base)} ranks, the candidate {_ranks(candidate)}")
    names = [sorted({device.name or "" for device in report.devices}) for report in (base, candidate)]
    if names[0] != names[1]:
        out.append(f"the devices differ: {', '.join(names[0]) or 'none'} and {', '.join(names[1]) or 'none'}")
    return out


def _summary(comparison: Comparison) -> str:
    if comparison.speedup is None:
        return "One of the two has no steps to compare."
    lengths = [_ms(side.step_ns) for side in (comparison.candidate, comparison.base)]
    text = f"The candidate's step takes {lengths[0]} where the base's takes {lengths[1]}"
    if comparison.speedup_low is None:
        text += f": {comparison.speedup:.2f} times as fast (too few steps for an interval)"
    elif not comparison.significant:
        text += ": no change beyond the noise "
        text += f"({comparison.speedup_low:.2f} to {comparison.speedup_high:.2f} times as fast)"
    else:
        text += (
            f": {comparison.speedup:.2f} times as fast ({comparison.speedup_low:.2f} to {comparison.speedup_high:.2f})"
        )
    gone = [row.id for row in comparison.causes if row.change == "gone"]
    new = [row.id for row in comparison.causes if row.change == "new"]
    text += f"; gone: {', '.join(gone)}" if gone else ""
    text += f"; new: {', '.join(new)}" if new else ""
    part = next((row for row in comparison.ledger if row.name != "compute" and row.beyond_noise), None)
    if part is not None:
        text += f"; {part.name} went from {_ms(part.base_ns)} to {_ms(part.candidate_ns)} a step"
    if _are_strangers(comparison):
        text += ". No operator, kernel or module of one bears a name of the other's: these may be different programs"
    return f"{text}."


def _are_strangers(comparison: Comparison) -> bool:
    """Whether both sides list what ran, and nothing by the same name."""
    rows = [*comparison.operators, *comparison.kernels, *comparison.modules]
    in_base = {row.name for row in rows if row.base_ns is not None}
    in_candidate = {row.name for row in rows if row.candidate_ns is not None}
    return bool(in_base and in_candidate) and in_base.isdisjoint(in_candidate)


def _ms(ns: int | None) -> str:
    return f"{(ns or 0) / 1e6:.4g} ms"
