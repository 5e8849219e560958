"""Collections of garbage by Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from whystall.analysis.host_states import HostState
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed, Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.host_calls import hidden
from whystall.diagnosis.detectors.samples import from_samples, measured_runs
from whystall.diagnosis.detectors.stretches import recurrence
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)


def in_trace(case: Case) -> Iterator[Replayed]:
    """Collections that Python stacks show."""
    for rank in case.ranks:
        nodes = case.host_state(rank, HostState.GC)
        if not nodes.any():
            continue
        per_step = case.time_of(nodes)
        begin = case.replayed.own_times(rank.rank, case.replayed.start[nodes])
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
            ranks=(rank.rank,),
            uncertainty=0.1,
            rivals=("host.python",),
            if_hidden=hidden(rank, "garbage collection takes time"),
        )


def in_samples(case: Case) -> Iterator[Sampled]:
    """Collections as Python itself times them."""
    for run in measured_runs(case):
        share = run.shares.get("gc", 0.0)
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
                rivals=("host.python",),
            )


RULE = Rule(CAUSE, (Finder(in_trace, ("trace",)), Finder(in_samples, ("samples", "no_device"))))
