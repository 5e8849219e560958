"""Libraries that load code in the recorded steps, which later steps do not do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed, Standing
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.vocabulary.runtime_calls import is_call

CAUSE: Final = cause_beside(__name__)
_LEAST_SHARE: Final = CAUSE.threshold("least_share")
_MOSTLY: Final = CAUSE.threshold("mostly")
_PREPARES: Final = "compilation or the capture of graphs"


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
            code=code_of(case, nodes, everywhere=True),
            ranks=(rank.rank,),
            rivals=("host.launch-bound", "host.allocator"),
        )


def at_the_start(case: Case) -> Iterator[Standing]:
    """One-time work; where it is most of a recording, recurring costs are not concluded from it.

    It may lie before the steps that are replayed: then it is only reported.
    """
    for rank in case.ranks:
        nodes = case.startup & (case.replayed.rank == rank.rank)
        spent = int(case.replayed.duration[nodes].sum())
        share = min(spent / max(_recorded_ns(case, rank), 1), 1.0)
        if share < _LEAST_SHARE:
            continue
        replayed = int(case.replayed.duration[case.in_window(nodes)].sum())
        mostly = replayed >= _MOSTLY * case.recorded_ns or (share >= _MOSTLY and len(rank.trace.steps) < 2)
        calls = case.nodes(rank, host=rank.startup)
        prepared = spent - int(case.replayed.duration[nodes & calls].sum())
        once, prepares = "in calls that happened once, far longer than the others", "compiling, or capturing graphs"
        parts = [(what, ns) for what, ns in ((once, spent - prepared), (prepares, prepared)) if ns > 0]
        events = [case.events_of(nodes), *([] for _ in parts[1:])]
        yield Standing(
            cause=CAUSE.id,
            attributed_ns=spent,
            evidence=(
                *(evidence.time(what, ns, shown) for (what, ns), shown in zip(parts, events, strict=True)),
                evidence.share("of the recording", share),
            ),
            detail=_PREPARES if prepared * 2 >= spent else "",
            severity="minor" if mostly else "info",
            nodes=nodes,
            method="what happens once against what recurs",
            code=code_of(case, nodes, everywhere=True),
            ranks=(rank.rank,),
            overrules=mostly,
        )


def _recorded_ns(case: Case, rank: RankCase) -> int:
    """How long the recording of a rank is, before its first device event as well."""
    graph, own = case.replayed, case.replayed.rank == rank.rank
    return int((graph.start + graph.duration)[own].max() - graph.start[own].min()) if own.any() else 0


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace", "device_events", "launch_calls")),
        Finder(at_the_start, ("trace", "device_events", "launch_calls")),
    ),
)
