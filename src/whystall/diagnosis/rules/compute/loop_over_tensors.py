"""Loops that launch kernels for one tensor after the other, outside of an optimizer: averages, norms, clipping."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.analysis.chains import BANDWIDTH_SHARE
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.host_calls import count_per_step
from whystall.diagnosis.detectors.loops_over_tensors import FEW_KERNELS, Least, joined, loops_over_tensors
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of

CAUSE: Final = cause_beside(__name__)
_LEAST: Final = Least(
    kernels=int(CAUSE.threshold("least_kernels")),
    times=int(CAUSE.threshold("least_times")),
    sizes=int(CAUSE.threshold("least_sizes")),
    alike=CAUSE.threshold("alike"),
    longest=int(CAUSE.threshold("longest")),
)
_NORM: Final = "norm"
_AVERAGES: Final = frozenset({"aten::add_", "aten::sub_", "aten::lerp_", "aten::copy_"})


def in_trace(case: Case) -> Iterator[Replayed]:
    """The same operators for tensors of many sizes, one after the other."""
    for rank in case.ranks:
        found = loops_over_tensors(rank, _LEAST) if rank.on_device else None
        if found is None:
            continue
        peak, moved = rank.workings.peak, float(rank.workings.work.moved[found.calls].sum())
        speed = peak.memory_bytes_per_s if peak is not None else None
        nodes, host, removal = joined(
            case,
            rank,
            found.launched,
            (found.begin, found.end),
            left=FEW_KERNELS * len(found.begin) / max(int(found.launched.sum()), 1),
            takes_ns=moved / (BANDWIDTH_SHARE * speed) * 1e9 if speed else 0.0,
        )
        per_step = case.time_of(nodes)
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.count("kernels in such loops", count_per_step(case, nodes), per=case.per),
                evidence.text("for each tensor", ", ".join(found.pattern)),
                evidence.time("their device time", per_step, case.events_of(nodes), per=case.per),
                evidence.time("the host's time in the loops", case.time_of(host), per=case.per),
            ),
            removal=removal,
            ceiling=case.without(nodes | host),
            method="replay: a few kernels that read and write the same bytes",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.2,
            confidence=0.85,
            rivals=("host.launch-bound", "compute.fusible", "host.sync"),
            remedy=_remedy(found.pattern),
        )


def _remedy(pattern: tuple[str, ...]) -> Remedy | None:
    """The call that takes all tensors: of norms, of an average, or none in particular."""
    if any(_NORM in name for name in pattern):
        return CAUSE.remedies["norms"]
    return CAUSE.remedies["average"] if not _AVERAGES.isdisjoint(pattern) else None


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events", "operators", "shapes")),))
