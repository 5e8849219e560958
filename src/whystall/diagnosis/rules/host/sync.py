"""Calls in which the host waits for the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.intervals import within
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.circumstances import circumstances
from whystall.diagnosis.detectors.collectives import lacks_a_stage
from whystall.diagnosis.detectors.episodes import mostly_within, named_times
from whystall.diagnosis.detectors.host_calls import (
    callers,
    calls_per_step,
    hidden,
    once_per_operator,
    operators_with,
    waited_ns,
    waiting_calls,
)
from whystall.diagnosis.detectors.loops_over_elements import is_most, without_loops
from whystall.diagnosis.detectors.wait_kinds import idle_of_calls, kinds_of_waits, operators_around, words_for
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of_calls
from whystall.replay.graph import Change, EdgeKind, Mask
from whystall.trace.link import rows_of
from whystall.trace.steps import is_of_an_engine
from whystall.vocabulary.runtime_calls import is_call
from whystall.vocabulary.signals import SIGNALS

CAUSE: Final = cause_beside(__name__)
_OF_WAITS: Final = CAUSE.threshold("of_waits")
# The kind of wait for which the entry's own remedy, or that of the job's circumstances, is written.
_READ: Final = "read"
_OF_A_PART: Final = CAUSE.threshold("of_a_part")
_MANY: Final = CAUSE.threshold("many")
_WITHIN: Final = "within"
# Operators that hand a single value to Python, and do nothing else.
_READS: Final = frozenset({"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero"})


def in_trace(case: Case) -> Iterator[Replayed]:
    """Waits on each rank, and the step's length when the host runs ahead."""
    graph = case.replayed
    # All stages together determine how far the host could run ahead.
    blind = lacks_a_stage(case)
    for rank in case.ranks:
        # Waits of torch's compiler, as it records a graph, are none of the program's.
        compiling = case.host_within(rank, *(spans := named_times(rank, "compilation")))
        waits = (graph.edge_kind == EdgeKind.SYNC) & (graph.rank[graph.target] == rank.rank)
        waits &= ~compiling[graph.target]
        # Those too that find the device idle: their own time goes with them.
        calls = waiting_calls(case, rank, graph.target[waits]) | _asked_to_wait(rank)
        first, last = rank.offsets["runtime_calls"]
        calls[first:last] &= ~within(rank.trace.runtime_calls["ts_ns"].to_numpy(), *spans)
        if calls.any():
            every, of_loops = _without_waits(case, rank, waits, calls, blind=blind), without_loops(case, rank)
            looped = of_loops is not None and of_loops.cause == CAUSE.id and is_most(case, of_loops, every)
            yield of_loops if of_loops is not None and looped else every


def _without_waits(case: Case, rank: RankCase, waits: Mask, calls: Mask, *, blind: bool) -> Replayed:
    begin, end, _ = rank.intervals(calls)
    inside = case.host_within(rank, begin, end + 1)
    per_step = calls_per_step(case, rank, once_per_operator(rank, calls))
    waited = waited_ns(case, rank, calls, case.replayed.target[waits])
    times = f"{per_step:.0f} times" if per_step >= 1.5 else "once"
    recorded = rank.analysis.signals.get("sync_events")
    kinds = [(kind, share) for kind, share in kinds_of_waits(case, rank, calls) if share >= _OF_A_PART]
    kind = kinds[0][0] if kinds and kinds[0][1] >= _OF_WAITS else None
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=waited,
        evidence=(
            evidence.count(
                "calls in which the host waits for the device", per_step, case.events_of(inside), per=case.per
            ),
            evidence.time("spent in them", waited, per=case.per),
            *(evidence.text("called by", name) for name in callers(rank, calls)[:3]),
            *((evidence.text("idle time around them, by kind", _listed(kinds)),) if len(kinds) > 1 else ()),
            *mostly_within(case, rank, inside),
        ),
        removal=Change(duration=_without_reads(case, rank, calls), removed_edges=waits),
        # An engine that does not wait runs one step ahead, and no further.
        floor=Change() if blind or is_of_an_engine(rank.trace.steps_from) else None,
        method="replay: without the waits, the host runs ahead",
        tier=1,
        holds_back=True,
        code=code_of_calls(case, rank, calls, idle_of_calls(rank, calls)),
        detail=f"{operators_around(rank, calls, _WITHIN)} reads on the host before it goes on"
        if kind == _WITHIN
        else "",
        remedy=_remedy(case, kind, per_step),
        ranks=(rank.rank,),
        rivals=("host.launch-bound", "host.python", "input.synchronous-loader"),
        missing=() if recorded else (SIGNALS["sync_events"].name,),
        confidence=0.95 if recorded else 0.9,
        if_hidden=hidden(rank, f"the host waits for the device {times} {case.per_step}"),
    )


def _listed(kinds: list[tuple[str, float]]) -> str:
    return ", ".join(f"{words_for(kind)} ({share:.0%})" for kind, share in kinds)


def _remedy(case: Case, kind: str | None, per_step: float) -> Remedy | None:
    """The remedy of what the host waits for; an engine's waits are those of its scheduling."""
    if "when_serving" in circumstances(case):
        return None
    if kind is None or kind == _READ:
        return CAUSE.remedies["many"] if per_step >= _MANY else None
    return CAUSE.remedies[kind]


def _asked_to_wait(rank: RankCase) -> Mask:
    """The calls that wait by their nature."""
    calls = rank.host_named(lambda name: is_call(name, "sync"), ("runtime_calls",))
    first, last = rank.offsets["runtime_calls"]
    calls[first:last] &= rank.of_the_job(rank.trace.runtime_calls["ts_ns"].to_numpy())
    return calls


def _without_reads(case: Case, rank: RankCase, calls: Mask) -> NDArray[np.int64]:
    """The durations without reads of single values: the remedy keeps them on the device: no call, no copy."""
    names = rank.trace.operators["name"].cast(str)
    reads = operators_with(rank, calls)
    reads = reads[names[reads].is_in(list(_READS)).to_numpy()]
    parent = rows_of(rank.trace.operators["parent"])
    while len(above := parent[reads][parent[reads] >= 0]):  # aten::item calls aten::_local_scalar_dense
        outer = above[names[above].is_in(list(_READS)).to_numpy()]
        if not len(outer) or np.isin(outer, reads).all():
            break
        reads = np.union1d(reads, outer).astype(np.intp)
    table = rank.trace.operators
    begin = table["ts_ns"].to_numpy()[reads]
    end = begin + table["duration_ns"].to_numpy()[reads]
    gone = (
        case.host_within(rank, begin, end)
        | case.nodes(rank, host=calls & _asked_to_wait(rank))
        | case.nodes(rank, device=rank.launched_in(np.sort(begin), np.sort(end)))
    )
    return np.where(gone, 0, case.replayed.duration)


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events", "launch_calls")),))
