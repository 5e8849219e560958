"""Work that was seen, in some steps of a watched job, to be done again or for nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from whystall.analysis.run_results import RunSummary
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import Cause
from whystall.diagnosis.detectors.calls_again import called_at, comes_by_itself, is_shared, shares_of, shares_of_alike
from whystall.diagnosis.detectors.samples import NINE_IN_TEN, SPREAD, from_samples, measured_runs
from whystall.diagnosis.finding import Evidence
from whystall.run_folder.observations import Observations, RepeatedWork

_SOLVES: Final = ("linalg_solve_ex", "linalg_solve")
_MORE: Final = 1.1
_LEAST_LISTED: Final = 0.5
_PART_BY: Final = {"aten::convolution": "strided", "aten::randperm": "drawn"}
"""The remedy for a result that is read in part, by the operator that makes it."""


def given_again(case: Case, cause: Cause) -> Iterator[Sampled]:
    """From repeated calls of modules, with the same inputs and results."""
    for run in measured_runs(case):
        seen = case.facts.of_rank(run.rank).repeated
        if seen is None:
            continue
        (forward, backward), saved = shares_of(case, run, seen)
        share = saved[1]
        if share < cause.threshold("least_share"):
            continue
        largest = max(seen.modules, key=lambda one: one.ns)
        told = "in calls that came out as before"
        if is_shared(seen):
            told = "in tokens that the call before was given, too"
        elif comes_by_itself(seen):
            told = "in calls of which some came out as before"
        yield from_samples(
            cause.id,
            run,
            share,
            saved,
            evidence=(
                evidence.share(f"of the steps looked at, {told}", forward),
                *_going_back(backward),
                *([evidence.count("such calls looked at", seen.kind_calls)] if comes_by_itself(seen) else []),
                evidence.count("calls that came out as before", seen.calls / seen.steps, per="step"),
                evidence.count("steps looked at", seen.steps),
            ),
            code=called_at(seen),
            method="samples: the time of calls whose inputs and outputs were the same before",
            detail=_told_of(largest.name, shared=is_shared(seen)),
            remedy=cause.remedies[_kept_how(seen, backward)],
            rivals=("host.small-operators", "host.python"),
        )


def _told_of(name: str, *, shared: bool) -> str:
    if shared:
        return f"{name} is given tokens that begin as those of the call before"
    if name.endswith(_SOLVES):
        return f"{name} is given the same matrix again, and factors it"
    return f"{name} is given again what it was given before, and gives the same"


def _kept_how(seen: RepeatedWork, backward: float) -> str:
    """The name of the remedy for repeated work."""
    if is_shared(seen):
        return "prefix"
    largest = max(seen.modules, key=lambda one: one.ns).name
    if largest == "ParametrizationList":
        return "parametrized"
    if largest.endswith(_SOLVES):
        return "factored"
    return "within" if backward else "by_key" if comes_by_itself(seen) else "kept"


def that_nothing_reads(case: Case, cause: Cause) -> Iterator[Sampled]:
    """By the operators of some steps whose results were seen to be read by nothing."""
    for run in measured_runs(case):
        seen = case.facts.of_rank(run.rank).unread
        if seen is None:
            continue
        # Following each operator makes steps longer; the operators take as long as in any other.
        share = min(seen.again_ns / seen.steps / run.mean_ns, _at_these_lines(run, seen), 0.99)
        unsure = max(NINE_IN_TEN * seen.error, SPREAD * share)
        if share >= cause.threshold("least_share"):
            largest = max(seen.modules, key=lambda one: one.ns)
            yield from_samples(
                cause.id,
                run,
                share,
                (max(share - unsure, 0.0), share, min(share + unsure, 0.99)),
                evidence=(
                    evidence.share("of a step, in operators whose results nothing reads", share),
                    evidence.count("such operators", seen.calls / seen.steps, per="step"),
                    evidence.count("steps looked at", seen.steps),
                ),
                code=called_at(seen),
                method="samples: the time of operators whose results nothing read",
                detail=f"nothing reads what {largest.name} gives",
                remedy=cause.remedies["unread"],
                rivals=("host.small-operators", "host.python"),
            )


def _at_these_lines(run: RunSummary, seen: RepeatedWork) -> float:
    """The largest possible share of operators at some lines: the samples of the run's thread there, and a tenth more.

    Some of the examined steps may hold occasional work. If the thread was never found at the costliest line, that line
    goes by another name, and the limit is unknown.
    """
    found: defaultdict[tuple[str, int], float] = defaultdict(float)
    for line in run.places:
        found[line.file, line.line] += line.share
    largest = max(seen.modules, key=lambda one: one.ns)
    if not found[largest.file, largest.line]:
        return 1.0
    listed = sum(one.ns for one in seen.modules) / max(seen.again_ns, 1)
    there = sum(found[at] for at in {(one.file, one.line) for one in seen.modules})
    return _MORE * there / max(min(listed, 1.0), _LEAST_LISTED)


def that_a_mask_drops(case: Case, cause: Cause) -> Iterator[Sampled]:
    """By the operators of some steps that made rows which a mask over them threw away."""
    for run, seen in _seen_of(case, lambda one: one.masked):
        yield from _with_backward(
            cause,
            run,
            seen,
            surely=0.8,  # rows are picked, and put back into their places
            what="forward work on rows that a mask throws away",
            method="samples: the time of operators on rows that a mask threw away",
            detail=f"a mask throws away most rows of what {_largest(seen)} gives",
            remedy="masked",
            rivals=("compute.padding", "host.small-operators"),
        )


def that_is_read_in_part(case: Case, cause: Cause) -> Iterator[Sampled]:
    """From the operators of some steps whose results were read in part."""
    for run, seen in _seen_of(case, lambda one: one.partly):
        yield from _with_backward(
            cause,
            run,
            seen,
            surely=0.75,  # smaller tensors are worked on less well, or from a faster cache
            what="forward work on what is not read",
            method="samples: the time of operators, by the part of what they made that was read",
            detail=f"only a part of what {_largest(seen)} gives is read",
            remedy=_PART_BY.get(_largest(seen), "part_first"),
            rivals=("compute.padding", "compute.fusible", "host.small-operators", "compute.at-limit"),
        )


def _seen_of(
    case: Case, kind: Callable[[Observations], RepeatedWork | None]
) -> Iterator[tuple[RunSummary, RepeatedWork]]:
    for run in measured_runs(case):
        seen = kind(case.facts.of_rank(run.rank))
        if seen is not None:
            yield run, seen


def _largest(seen: RepeatedWork) -> str:
    return max(seen.modules, key=lambda one: one.ns).name


def _with_backward(
    cause: Cause,
    run: RunSummary,
    seen: RepeatedWork,
    *,
    surely: float,
    what: str,
    method: str,
    detail: str,
    remedy: str,
    rivals: tuple[str, ...],
) -> Iterator[Sampled]:
    """Partly wasted forward work (``surely``: share of the least estimate), and its backward pass."""
    share = seen.again_ns / seen.steps / run.mean_ns
    if share < cause.threshold("least_share"):
        return
    # Gradients go back through all of it as well: in a product or a convolution twice as long.
    back = 2.0 * seen.differentiated_ns / max(seen.again_ns, 1)
    least, expected, most = (min(share * (1 + part * back), 0.95) for part in (0.4, 0.75, 1.0))
    yield from_samples(
        cause.id,
        run,
        expected,
        (least * surely, expected * 0.9, most),
        evidence=(
            evidence.share(f"of a step, in {what}", share),
            evidence.count("such operators", seen.calls / seen.steps, per="step"),
            evidence.count("steps looked at", seen.steps),
        ),
        code=called_at(seen),
        method=method,
        detail=detail,
        remedy=cause.remedies[remedy],
        rivals=rivals,
    )


def in_rows_that_are_alike(case: Case, cause: Cause) -> Iterator[Sampled]:
    """By the calls of modules in some steps that were given each row several times."""
    for run in measured_runs(case):
        seen = case.facts.of_rank(run.rank).alike
        if seen is None:
            continue
        (forward, backward), saved = shares_of_alike(case, run, seen)
        if saved[1] >= cause.threshold("least_share"):
            largest = max(seen.modules, key=lambda one: one.ns)
            yield from_samples(
                cause.id,
                run,
                saved[1],
                saved,
                evidence=(
                    evidence.share("of the steps looked at, in rows that were there before in the same call", forward),
                    *(
                        [evidence.share("of the steps, in going back through them, at most", backward)]
                        if backward
                        else []
                    ),
                    evidence.count("such calls", seen.calls / seen.steps, per="step"),
                    evidence.count("steps looked at", seen.steps),
                ),
                code=called_at(seen),
                method="samples: the time of calls, by the rows that they were given and gave more than once",
                detail=f"{largest.name} is given each row several times, and gives the same for it",
                remedy=cause.remedies["each_row_once"],
                rivals=("compute.padding", "host.small-operators", "compute.at-limit"),
            )


def _going_back(share: float) -> list[Evidence]:
    return [evidence.share("of the steps, in going back through them, at most", share)] if share else []
