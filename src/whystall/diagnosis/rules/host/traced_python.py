"""A tool that follows Python is on while the job runs: tracemalloc, a profiler, a debugger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.samples import (
    LEAST_SEEN,
    code_of_lines,
    from_samples,
    is_torchs,
    lines_where,
    measured_runs,
    share_of,
)
from whystall.diagnosis.detectors.traced import saved_of_python
from whystall.diagnosis.rule import Finder, Rule
from whystall.run_folder.samples import CALLED

CAUSE: Final = cause_beside(__name__)
_WORDS: Final = {
    "tracemalloc": "tracemalloc is on",
    "profiler": "a profiler of Python's is on (sys.setprofile, cProfile)",
    "tracer": "a tracer of Python's is on (sys.settrace: a debugger, coverage)",
}


def in_samples(case: Case) -> Iterator[Sampled]:
    """The time in which samples found Python running, in any part of a step, and the tool's share of it."""
    tools = case.facts.python_tools
    least, expected, most = saved_of_python(tools)
    for run in measured_runs(case) if tools else ():
        lines = lines_where(run, lambda line: line.leaf != CALLED and not is_torchs(line.leaf))
        share = share_of(lines)
        if share * expected < LEAST_SEEN:
            continue
        yield from_samples(
            CAUSE.id,
            run,
            share * expected,
            (share * least, share * expected, share * most),
            evidence=(evidence.share("of the training thread's stack samples that found Python running", share),),
            code=code_of_lines(lines),
            method="samples: the share of Python's time that such a tool takes at least, usually and at most",
            confidence=0.8,
            detail="; ".join(_WORDS[tool] for tool in tools),
            rivals=("host.python", "input.synchronous-loader"),
        )


RULE = Rule(CAUSE, (Finder(in_samples, ("samples", "no_device")),))
