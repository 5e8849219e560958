"""A training thread that waits for the interpreter's lock, which other threads of the job hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.analysis.run_results import SampledLine
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.samples import (
    AWAITS,
    LEAST_OFF_CORE,
    code_of_lines,
    from_samples,
    measured_runs,
    off_core,
    share_of,
)
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)
_LEAST_BESIDE: Final = CAUSE.threshold("least_beside")
_OTHERS: Final = CAUSE.threshold("others")


def in_samples(case: Case) -> Iterator[Sampled]:
    """Time off the core that nothing explains, while other Python threads are at work."""
    if case.facts.processes > 1:  # a rank that waits for others is off its core as well
        return
    for run in measured_runs(case):
        off = off_core(run, _waits)
        if off < LEAST_OFF_CORE or run.thread_cores < _LEAST_BESIDE:
            continue
        # The thread that holds the lock runs meanwhile. If it runs less than that, other programs that take cores are
        # the nearer cause.
        if run.thread_cores < off and (run.other_cores or 0.0) >= _OTHERS:
            continue
        yield from_samples(
            CAUSE.id,
            run,
            off,
            evidence=(
                evidence.share(
                    "of the steps' time the training thread was on no core and waited for nothing known", off
                ),
                evidence.count("cores that other Python threads of the job used, on average", run.thread_cores),
                evidence.share("of the stack samples that found one of them at work", share_of(run.beside)),
            ),
            code=code_of_lines(run.beside),
            saved=(off * 0.6, off, min(off * 1.15, 0.98)),
            method="samples: time off the core while other threads run Python",
            confidence=0.75,
            rivals=("host.cpu-contention", "host.python"),
        )


def _waits(line: SampledLine) -> bool:
    return line.part not in ("input", "save") and (bool(AWAITS.search(line.leaf)) or "sleep" in line.text)


RULE = Rule(CAUSE, (Finder(in_samples, ("samples", "no_device")),))
