"""The cost of recording in the recorded steps: measured where the run has steps without it, else estimated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import polars as pl

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Sampled
from whystall.diagnosis.case import FEWEST_SAMPLED_STEPS, Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.finding import Evidence
from whystall.diagnosis.gains import percent
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.recording import lengthened
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)
_OPERATOR_NS: Final = CAUSE.threshold("operator_ns")
_FUNCTION_NS: Final = CAUSE.threshold("function_ns")


def measured(case: Case) -> Iterator[Sampled]:
    """Recorded steps, all of which take longer than nearly all others of the run."""
    for run in case.runs:
        rank = next((rank for rank in case.ranks if rank.rank == run.rank), None)
        found = lengthened(run, rank) if rank is not None and run.measured >= FEWEST_SAMPLED_STEPS else None
        if rank is None or found is None:
            continue
        middle, usual = found.recorded_ns, found.usual_ns
        left_out = (
            "times of the host are too long by what recording costs; gains are those of steps that are not recorded"
            if case.lengthening is not None and case.lengthening > 1
            else "times of the host, and gains that rest on them, are too large by what recording costs"
        )
        yield _told(
            rank,
            middle - usual,
            f"recorded steps take {middle / usual:.2f} times as long as the run's other steps: {left_out}",
            (
                evidence.time("a recorded step, in the median", middle),
                evidence.time("a step without the profiler, in the median", usual),
            ),
            confidence=0.9,
        )


def estimated(case: Case) -> Iterator[Sampled]:
    """The least cost of recording the events, where no other steps show it."""
    known = {run.rank for run in case.runs}
    for rank in case.ranks:
        if rank.rank in known:
            continue
        begin, end = case.window_on(rank)
        operators, functions = (
            table.filter((pl.col("ts_ns") >= begin) & (pl.col("ts_ns") < end) & (pl.col("thread") == rank.training))
            for table in (rank.trace.operators, rank.trace.python_functions)
        )
        cost = (len(operators) * _OPERATOR_NS + len(functions) * _FUNCTION_NS) / max(case.steps, 1)
        share = percent(cost / max(case.step_ns, 1))
        yield _told(
            rank,
            round(cost),
            f"recording its events took the host an estimated {share} of the {case.per}, or more: that is an estimate, "
            f"since the job was not timed without a profiler",
            (
                evidence.count("operators on the training thread", len(operators) / max(case.steps, 1), per=case.per),
                evidence.count("Python functions on it", len(functions) / max(case.steps, 1), per=case.per),
                evidence.time("what recording them costs at least, an estimate", cost, per=case.per),
            ),
            confidence=0.5,
        )


def _told(rank: RankCase, cost_ns: int, sentence: str, facts: tuple[Evidence, ...], *, confidence: float) -> Sampled:
    """A cost of the recorded steps alone: shown where it is large, without a gain."""
    return Sampled(
        cause=CAUSE.id,
        attributed_ns=cost_ns,
        evidence=facts,
        saved=(0.0, 0.0, 0.0),
        method="none: only recorded steps take longer",
        ranks=(rank.rank,),
        confidence=confidence,
        if_hidden=sentence,
    )


RULE = Rule(
    CAUSE,
    (
        Finder(measured, ("trace", "samples", "steps")),
        Finder(estimated, ("trace", "operators")),
    ),
)
