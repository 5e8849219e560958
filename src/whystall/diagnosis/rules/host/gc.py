"""Collections of garbage by Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from whystall.analysis.host_states import HostState
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed, Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.episodes import episode, silent_episodes
from whystall.diagnosis.detectors.host_calls import hidden
from whystall.diagnosis.detectors.samples import (
    code_of_lines,
    from_samples,
    lines_where,
    measured_runs,
    share_of,
)
from whystall.diagnosis.detectors.slow_steps import of_slow_steps, slow_steps
from whystall.diagnosis.detectors.stretches import recurrence
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of

CAUSE: Final = cause_beside(__name__)
_BY_HAND: Final = re.compile(r"\bgc\.collect\(")
# Looks need Python's lock, which a collection keeps: they find few of them.
_MOSTLY_BY_HAND: Final = 0.25
# Frames that call it in a recording: Python's own collections are events without such a frame.
_CALLED: Final = re.compile(r"<built-in (function|method) collect\b|^gc\.py\(\d+\): collect")
_LEFT_OUT: Final = Remedy(
    text="Leave gc.collect() out of the loop, or call it seldom (every some hundred steps): Python collects by itself "
    "when there is something to collect. Switching automatic collection off does not stop an explicit call.",
    patch="-gc.collect()",
    risk="Cycles that hold large tensors keep their memory until the next collection: find what makes them.",
)


def in_trace(case: Case) -> Iterator[Replayed]:
    """Collections that Python stacks show."""
    for rank in case.ranks:
        nodes = case.host_state(rank, HostState.GC)
        if not nodes.any():
            continue
        per_step = case.time_of(nodes)
        begin = case.replayed.own_times(rank.rank, case.replayed.start[nodes])
        called = nodes & case.nodes(rank, host=rank.host_named(_CALLED.search, ("python_functions",)))
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.time("garbage collection", per_step, case.events_of(nodes), per=case.per),
                evidence.count("collections seen", int(np.count_nonzero(case.in_window(nodes)))),
            ),
            removal=case.without(nodes),
            method="replay: without the collections",
            recurrence=recurrence(case, rank, begin),
            code=code_of(case, nodes),
            remedy=_LEFT_OUT if case.time_of(called) * 2 > per_step else None,
            ranks=(rank.rank,),
            uncertainty=0.1,
            rivals=("host.python",),
            if_hidden=hidden(rank, "garbage collection takes time"),
        )


def in_samples(case: Case) -> Iterator[Sampled]:
    """Collections as Python itself times them."""
    for run in measured_runs(case):
        share = run.shares.get("gc", 0.0)
        own = lines_where(run, lambda line: bool(_BY_HAND.search(line.text)))
        if share > 0:
            yield from_samples(
                CAUSE.id,
                run,
                share,
                part="gc",
                evidence=(
                    evidence.time("garbage collection, on average", round(share * run.mean_ns), per="step"),
                    evidence.share("of the steps' time", share),
                ),
                code=code_of_lines(own),
                remedy=_LEFT_OUT if share_of(own) >= _MOSTLY_BY_HAND * share else None,
                rivals=("host.python",),
            )


def in_slow_steps(case: Case) -> Iterator[Sampled]:
    """Collections in slow steps of a job with an accelerator."""
    for slow in slow_steps(case):
        share = slow.lost("gc")
        if share > 0:
            lines = lines_where(slow.run, lambda line: bool(_BY_HAND.search(line.text)))
            yield of_slow_steps(CAUSE.id, slow, share, "gc", lines, ("host.python",))


def in_silence(case: Case) -> Iterator[Replayed]:
    """Long Python that nothing names in a trace, in a run whose collections take that long by Python's own counters."""
    for silent in silent_episodes(case):
        if silent.collects.any():
            begin, end = silent.begin[silent.collects], silent.end[silent.collects]
            yield episode(case, silent.rank, CAUSE.id, begin, end, confidence=0.85, rivals=("host.python",))


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace",)),
        Finder(in_samples, ("samples", "no_device")),
        Finder(in_slow_steps, ("samples", "device_events")),
        Finder(in_silence, ("trace", "samples", "device_events")),
    ),
)
