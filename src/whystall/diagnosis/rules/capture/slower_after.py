"""Steps that take longer after a window of recorded steps than before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.analysis.run_results import RecordedWindow, RunSummary
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)
_ERRORS: Final = CAUSE.threshold("errors")
# The library that records devices stays attached (pytorch issue 144455: steps 10 to 20 % longer).
_WITHOUT_CUPTI: Final = Remedy(
    text="Profile in a run of its own; on a job that is watched, record one window late.", patch=None, risk=None
)


def in_samples(case: Case) -> Iterator[Sampled]:
    """The window of a run after which steps were slower by most."""
    for run in case.runs:
        windows = [window for window in run.windows if _certain_ns(window) > 0]
        if windows:
            cupti = any(_by_cupti(rank) for rank in case.ranks if rank.rank == run.rank)
            yield _slower(run, max(windows, key=_certain_ns), cupti=cupti)


def _by_cupti(rank: RankCase) -> bool:
    """Whether calls of CUDA were recorded, which CUPTI does."""
    return bool(rank.host_named(lambda name: name.startswith("cu"), ("runtime_calls",)).any())


def _certain_ns(window: RecordedWindow) -> float:
    """By how much steps after a window are longer for certain; nothing where they were so before it began."""
    slower = window.after_ns - window.before_ns
    began_slow = window.lead_in_ns > window.before_ns + slower / 2
    if window.usual_change is None or began_slow or slower <= window.usual_change * window.before_ns:
        return 0.0
    return slower - _ERRORS * window.error_ns


def _slower(run: RunSummary, window: RecordedWindow, *, cupti: bool) -> Sampled:
    slower = window.after_ns - window.before_ns
    error = _ERRORS * window.error_ns
    least, expected, most = (
        extra * window.steps_after / max(run.total_ns, 1) for extra in (slower - error, slower, slower + error)
    )
    return Sampled(
        cause=CAUSE.id,
        attributed_ns=slower,
        evidence=(
            evidence.time("a step before the window, in the median", window.before_ns),
            evidence.time("a step after it, in the median of the faster half", window.after_ns),
            evidence.share("the largest change elsewhere in the run", window.usual_change or 0.0),
            evidence.count("steps that were left to run", window.steps_after),
        ),
        saved=(least, expected, most),
        step_ns=round(run.mean_ns),
        method="samples: steps after the window as long as those before it",
        ranks=(run.rank,),
        # Something else may have begun at the same step.
        confidence=0.7,
        rivals=("device.throttled", "host.cpu-contention", "memory.growth"),
        remedy=None if cupti else _WITHOUT_CUPTI,
    )


RULE = Rule(CAUSE, (Finder(in_samples, ("samples",)),))
