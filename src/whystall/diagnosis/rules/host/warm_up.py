"""Libraries that load code in the recorded steps, which later steps do not do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.host_calls import operators_with
from whystall.diagnosis.rule import Finder, Rule
from whystall.vocabulary.runtime_calls import is_call

CAUSE: Final = cause_beside(__name__)


def in_trace(case: Case) -> Iterator[Replayed]:
    """Runtime calls that load modules or libraries."""
    for rank in case.ranks:
        calls = rank.host_named(lambda name: is_call(name, "load"), ("runtime_calls",))
        begin, _, _ = rank.intervals(calls)
        if not len(begin):
            continue
        nodes = case.nodes(rank, host=calls)
        per_step = case.time_of(nodes)
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.time("in calls that load code", per_step, case.events_of(nodes), per=case.per),
                evidence.count("such calls in the recording", len(begin)),
            ),
            removal=case.without(nodes),
            method="replay: without the calls",
            code=tuple(rank.code_of(operators_with(rank, calls))),
            ranks=(rank.rank,),
            rivals=("host.launch-bound", "host.allocator"),
        )


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events", "launch_calls")),))
