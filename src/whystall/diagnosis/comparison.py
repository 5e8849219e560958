"""Compares two runs: the step, the parts of its ledger, operators, kernels, modules, and the causes.

All amounts are per step, so that recordings of different length are comparable; rows are matched by name. The median
step decides; if a finding is an occasional cause, which no median shows, the mean step decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from whystall.analysis.paired import SIGMAS, Interval
from whystall.analysis.run_noise import RunNoise, run_noise
from whystall.analysis.step_errors import FEWEST_STEPS
from whystall.analysis.whole_job import WholeJob
from whystall.diagnosis.catalogue import causes
from whystall.diagnosis.cause_changes import CauseChange, Judged, cause_changes, named_causes, what_changed
from whystall.diagnosis.causes import Statistic
from whystall.diagnosis.comparability import Comparability, Placed, comparability
from whystall.diagnosis.count_changes import CountChange, Counted, count_changes
from whystall.diagnosis.job_changes import job_changes
from whystall.diagnosis.sides import (
    RunLength,
    RunSteps,
    Side,
    against_baseline,
    baseline_steps,
    other_cores,
    run_steps,
    run_to_run,
    side,
    speedup,
)
from whystall.diagnosis.time_changes import TIMES, Change, Timed, time_changes

# Cores of other programs are reported from this number on.
_MANY_CORES = 0.1
# The other statistic must be surer to be reported: 99 % of a normal distribution.
_SURER_SIGMAS = 2.576


class Recorded(Judged, Counted, Placed, Timed, Protocol):
    """The compared part of a report."""

    @property
    def job(self) -> WholeJob | None:
        """The whole job, if it was watched from its start."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The changes from the base to the candidate. ``speedup`` above 1: the candidate's step is shorter.

    It uses the ``statistic`` that decides; ``mean`` and ``median`` hold both, with intervals where enough steps were
    seen. ``pairs`` counts the runs of each side. ``counts`` are per step. ``incomparable`` lists reasons against
    comparing times (another machine, number of ranks or size of batches): then there is no speed-up.
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
    job: list[Change] = []
    """The whole job, its first step and its parts, where both runs were watched from their start."""
    noise: RunNoise | None = None
    """The noise of the base's runs, if it is a baseline of several; by the statistic that decides."""


def compare_reports(
    base: Recorded,
    candidate: Recorded,
    names: tuple[str, str],
    again: Sequence[tuple[Recorded, Recorded]] = (),
) -> Comparison:
    """The comparison of two reports; ``names`` are their names.

    ``again`` are further pairs of runs of the same two, which measure the noise. Tables are of the first pair.
    """
    pairs = [(base, candidate), *again]
    sides = _Sides([run_steps(one) for one, _ in pairs], [run_steps(other) for _, other in pairs])
    known = [comparability(one, other) for one, other in pairs]
    return _compared(base, candidate, names, sides, known, (run_to_run(base), run_to_run(candidate)))


def compare_with_baseline(
    base: Recorded,
    runs: Sequence[RunLength],
    candidates: Sequence[Recorded],
    names: tuple[str, str],
) -> Comparison:
    """The comparison with a baseline; ``base`` is one of its runs, and ``runs`` are the lengths of all.

    The noise is the spread of these runs, or the usual noise for a single one. Tables are those of the first of
    ``candidates``, which are runs of the same code.
    """
    noises = noises_of(runs)
    known = [comparability(base, candidate) for candidate in candidates]
    if noises is None:
        return compare_reports(base, candidates[0], names)
    noise = noises[_deciding(base, candidates[0])]
    sides = _Sides([baseline_steps(runs, noises)], [against_baseline(candidates, base, noise)], noise)
    # Parts and operators come from the few steps of a trace, which differ by no less than is usual.
    sways = [max(noise.error(), run_to_run(one)) for one in (base, candidates[0])]
    found = _compared(base, candidates[0], names, sides, known, (sways[0], sways[1]))
    return msgspec.structs.replace(
        found,
        base=msgspec.structs.replace(found.base, runs=len(runs)),
        candidate=msgspec.structs.replace(found.candidate, runs=len(candidates)),
    )


def noises_of(runs: Sequence[RunLength]) -> dict[Statistic, RunNoise] | None:
    """The noise between runs of one job; ``None`` for a single one."""
    mean, median = run_noise([run.mean_ns for run in runs]), run_noise([run.median_ns for run in runs])
    return None if mean is None or median is None else {"mean": mean, "median": median}


@dataclass(frozen=True, slots=True)
class _Sides:
    """The runs of both sides; of pairs the i-th of both belong together."""

    before: Sequence[RunSteps | None]
    after: Sequence[RunSteps | None]
    noise: RunNoise | None = None

    def speedup(self, statistic: Statistic, sigmas: float = SIGMAS) -> tuple[float | None, Interval | None]:
        """How many times as fast the second is."""
        return speedup(self.before, self.after, statistic, sigmas) or (None, None)


def _compared(
    base: Recorded,
    candidate: Recorded,
    names: tuple[str, str],
    sides: _Sides,
    known: Sequence[Comparability],
    sways: tuple[float, float],
) -> Comparison:
    """The comparison of two reports by the lengths of their runs' steps; ``sways`` is the spread of runs of each."""
    statistic = _deciding(base, candidate)
    before, after = side(names[0], sides.before, statistic), side(names[1], sides.after, statistic)
    reasons = list(dict.fromkeys(reason for one in known for reason in one.reasons))
    # If times are not comparable, the result holds no number that could pass for a comparison.
    timed = _Sides([], []) if reasons else sides
    ratio, interval = timed.speedup(statistic)
    changes = {kind: time_changes(kind, base, candidate, None if reasons else sways) for kind in TIMES}
    comparison = Comparison(
        base=before,
        candidate=after,
        speedup=ratio,
        speedup_low=interval.low if interval else None,
        speedup_high=interval.high if interval else None,
        significant=_is_beyond(interval),
        statistic=statistic,
        pairs=len(sides.before),
        mean=timed.speedup("mean")[1],
        median=timed.speedup("median")[1],
        summary="",
        causes=cause_changes(base, candidate),
        ledger=changes["ledger"],
        operators=changes["operator"],
        kernels=changes["kernel"],
        modules=changes["module"],
        warnings=[
            *reasons,
            *known[0].warnings,
            *_warnings(base, candidate, before, after),
            *_otherwise(timed, statistic),
        ],
        counts=count_changes(base, candidate, amounts=all(one.same_work for one in known)),
        incomparable=reasons,
        job=[] if reasons else job_changes(base.job, candidate.job),
        noise=sides.noise,
    )
    return msgspec.structs.replace(comparison, summary=_summary(comparison))


def _deciding(base: Recorded, candidate: Recorded) -> Statistic:
    """The mean where either side has a cause that happens now and then."""
    named = {*named_causes(base), *named_causes(candidate)}
    return "mean" if any(known.statistic == "mean" for cause in named if (known := causes().get(cause))) else "median"


def _is_beyond(interval: Interval | None) -> bool:
    return interval is not None and not interval.low <= 1 <= interval.high


def _otherwise(sides: _Sides, statistic: Statistic) -> list[str]:
    """The change in the other statistic, if the one that decides shows none."""
    decided = sides.speedup(statistic)[1]
    other: Statistic = "median" if statistic == "mean" else "mean"
    found = sides.speedup(other, _SURER_SIGMAS)[1]
    if found is None or _is_beyond(decided) or not _is_beyond(found):
        return []
    why = "which counts what happens now and then" if other == "mean" else "which leaves out what happens now and then"
    return [f"the {other} step, {why}, is {found.ratio:.2f} times as fast ({found.low:.2f} to {found.high:.2f})"]


def _warnings(base: Recorded, candidate: Recorded, before: Side, after: Side) -> list[str]:
    out = []
    if before.measured_by != after.measured_by:
        out.append(f"one side is measured by {before.measured_by}, the other by {after.measured_by}")
    if 0 < min(before.steps, after.steps) < FEWEST_STEPS:
        out.append("too few steps to distinguish a change from noise")
    for report, which in ((base, "base"), (candidate, "candidate")):
        if not any(device.kind != "cpu" for device in report.devices) and other_cores(report) >= _MANY_CORES:
            out.append(f"other programs used {other_cores(report):.1f} cores of the machine beside the {which}")
    return out


def _not_comparable(comparison: Comparison) -> str:
    """Why times are not comparable, and the changes of counts."""
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
        text += _what_is_needed(comparison)
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


def _what_is_needed(comparison: Comparison) -> str:
    """The conditions for detecting a smaller change."""
    if comparison.pairs > 1:
        return f", in {comparison.pairs} pairs of runs"
    least = ((comparison.speedup_high or 1) / (comparison.speedup or 1) - 1) * 100
    if comparison.noise is not None:
        of, seen = comparison.candidate.runs, comparison.noise
        return (
            f"; {seen.runs} runs of the baseline differ by {seen.spread * 100:.2g} % (standard deviation), beside "
            f"which {of} run{'s' * (of > 1)} of the candidate show{'s' * (of == 1)} no change below {least:.2g} %"
        )
    return (
        f"; two runs of the same code differ, and one run of each shows no change below {least:.0f} %: give further "
        f"pairs of runs (--again)"
    )


def _are_strangers(comparison: Comparison) -> bool:
    """Whether both sides have operators, kernels or modules, and none by the same name."""
    rows = [*comparison.operators, *comparison.kernels, *comparison.modules]
    in_base = {row.name for row in rows if row.base_ns is not None}
    in_candidate = {row.name for row in rows if row.candidate_ns is not None}
    return bool(in_base and in_candidate) and in_base.isdisjoint(in_candidate)


def _ms(ns: int | None) -> str:
    return f"{(ns or 0) / 1e6:.4g} ms"
