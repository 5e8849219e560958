"""Device events as rules change them: given another length, or the rate that good kernels reach."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.intervals import ANY, class_timeline
from whystall.analysis.workings import Workings
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Change, EdgeKind, Mask
from whystall.trace.link import rows_of
from whystall.trace.recorded_sizes import sizes_by_argument
from whystall.vocabulary.signals import SIGNALS

REACHED: Final = 0.7
"""The share of a matrix peak that good kernels reach (reference: causes.md, "eta = 0.7")."""
LEAST_REACHED: Final = 0.3
"""The share that products of few rows reach, which fill the multiprocessors of a device once and not evenly."""
_SHARE_KEPT: Final = 0.6
"""A product that reaches a share of its present peak reaches at least this much of that share of another: chosen low.
Large ones reach 92 % of an A100's peak on CUDA cores and some 80 % on tensor cores."""
BANDWIDTH_REACHED: Final = 0.85
"""The share of the bandwidth in the data sheet that copies reach."""
MATRIX_PRODUCTS: Final = frozenset(
    {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::matmul"}
)
"""Operators that multiply matrices."""


def durations(rank: RankCase) -> NDArray[np.float64]:
    """How long each device event took."""
    return rank.trace.device_events["duration_ns"].to_numpy().astype(np.float64)


def shortened(case: Case, rank: RankCase, chosen: Mask, target_ns: NDArray[np.float64]) -> Change:
    """The change by which chosen device events take ``target_ns``, if that is shorter."""
    graph = case.replayed
    nodes = case.nodes(rank, device=chosen)
    wanted = case.device_values(rank, target_ns, 0.0)
    shorter = np.minimum(graph.duration, np.maximum(wanted, 0).astype(np.int64))
    return Change(duration=np.where(nodes, shorter, graph.duration))


def operators_of(rank: RankCase, events: Mask) -> NDArray[np.intp]:
    """The operators that launched some device events."""
    operator = rows_of(rank.trace.device_events["operator"])[events]
    return np.unique(operator[operator >= 0]).astype(np.intp)


def costliest_call(rank: RankCase, events: Mask) -> str:
    """The operator that launched most of the time of some device events, with the sizes of its first two tensors."""
    operator = rows_of(rank.trace.device_events["operator"])
    known = events & (operator >= 0)
    if not known.any():
        return ""
    calls = rank.trace.operators[operator[known].astype(np.int64)].with_columns(took=durations(rank)[known])
    keys = [name for name in ("name", "input_dims") if name in calls.columns]
    most = calls.group_by(keys).agg(pl.col("took").sum()).sort("took", "name", descending=True).row(0, named=True)
    given = sizes_by_argument(str(most.get("input_dims") or "[]"))[:2]
    sizes = [str(list(one[0])) for one in given if one]
    return f"{most['name']} of {' by '.join(sizes)}" if sizes else str(most["name"])


def prompt(case: Case, nodes: Mask) -> NDArray[np.int64]:
    """The delays of nodes, some of which follow at once."""
    delay = case.replayed.delay
    # A node without edges begins by its delay alone: it has no predecessor.
    follows = np.diff(case.replayed.first.astype(np.int64)) > 0
    return np.where(nodes & follows & (delay > 0), 0, delay)


def close_up(case: Case, nodes: Mask, gap_ns: int) -> NDArray[np.int64]:
    """The lags of edges if some events of a stream follow their predecessor within a gap."""
    graph = case.replayed
    near = (graph.edge_kind == EdgeKind.STREAM) & nodes[graph.target]
    return np.where(near, np.minimum(graph.lag, gap_ns), graph.lag)


def left_out(case: Case, nodes: Mask) -> Change:
    """The graph without some nodes, and without the gaps before them on their streams."""
    return replace(case.without(nodes), lag=close_up(case, nodes, 0))


def faster_matrices(
    case: Case,
    rank: RankCase,
    chosen: Mask,
    cause: str,
    *,
    ratio: float,
    peak: str,
    peak_flops_per_s: float,
    best_flops_per_s: float = 0.0,
    what: str = "matrix kernels without tensor cores",
    remedy: Remedy | None = None,
) -> Replayed:
    """Matrix kernels at another peak: the time of their FLOPs at the share of it that good kernels reach.

    ``ratio`` is the ratio of their peak to that one, for kernels with unknown FLOPs; ``best_flops_per_s`` a higher peak
    that they may reach at most.
    """
    work = rank.workings
    duration = durations(rank)
    moved = work.transfer_ns() / BANDWIDTH_REACHED
    flops = work.flops()
    ideal = flops / peak_flops_per_s * 1e9
    known = flops > 0
    best = flops / max(peak_flops_per_s, best_flops_per_s) * 1e9
    ceiling = np.where(known, np.maximum(best, work.transfer_ns()), duration * ratio)
    costliest = costliest_call(rank, chosen)

    now = np.where(known, flops / np.maximum(duration, 1) * 1e9 / (peak_flops_per_s * ratio), 0)
    least = np.clip(_SHARE_KEPT * now, LEAST_REACHED, REACHED)

    def at(share: float | NDArray[np.float64]) -> NDArray[np.float64]:
        return np.maximum(np.where(known, ideal, duration * ratio) / share, moved)

    nodes = case.nodes(rank, device=chosen)
    per_step = case.time_of(nodes)
    eligible = max(duration[work.could_use_tensor_cores].sum(), 1)
    return Replayed(
        cause=cause,
        attributed_ns=per_step,
        evidence=(
            evidence.time(what, per_step, case.events_of(nodes), per=case.per),
            evidence.share("of the time of kernels that could use them", float(duration[chosen].sum() / eligible)),
            *((evidence.text("the costliest call", costliest),) if costliest else ()),
        ),
        removal=shortened(case, rank, chosen, at(REACHED)),
        floor=shortened(case, rank, chosen, at(least)),
        ceiling=shortened(case, rank, chosen, ceiling),
        method=f"replay: the same products at {REACHED:.0%} of the {peak} peak, or at memory bandwidth",
        code=code_of(case, nodes),
        ranks=(rank.rank,),
        uncertainty=0.25,
        remedy=remedy,
        rivals=("compute.misaligned-shape", "host.launch-bound"),
    )


def scalar_kernels(work: Workings, dtype: str) -> Mask:
    """Kernels of ``dtype`` that could use tensor cores and, by their names, do not.

    Products with a vector are left out: they read each number once, and gain nothing by tensor cores.
    """
    told = work.classified.has("cuda-cores") & ~work.classified.has("vector-product")
    told &= work.classified.is_told_to_be(dtype)
    return work.could_use_tensor_cores & ~work.uses_tensor_cores & told


def faster_by_names(case: Case, rank: RankCase, chosen: Mask, cause: str, *, ratio: float, peak: str) -> Replayed:
    """Matrix kernels of unknown work at another peak: possibly no gain, since kernels bound by memory gain nothing."""
    duration = durations(rank)
    nodes = case.nodes(rank, device=chosen)
    per_step = case.time_of(nodes)
    eligible = max(duration[rank.workings.could_use_tensor_cores].sum(), 1)
    return Replayed(
        cause=cause,
        attributed_ns=per_step,
        evidence=(
            evidence.time("matrix kernels on CUDA cores, by name", per_step, case.events_of(nodes), per=case.per),
            evidence.share("of the time of kernels that could use them", float(duration[chosen].sum() / eligible)),
        ),
        removal=shortened(case, rank, chosen, duration * (1 + ratio / REACHED) / 2),
        ceiling=shortened(case, rank, chosen, duration * ratio),
        method=f"replay: half of what the {peak} peak allows, since the kernels' work is not known",
        code=code_of(case, nodes),
        ranks=(rank.rank,),
        uncertainty=0.5,
        confidence=0.6,
        missing=(SIGNALS["shapes"].name,),
        rivals=("compute.misaligned-shape", "host.launch-bound"),
    )


def share_beside(rank: RankCase, others: Mask) -> NDArray[np.float64]:
    """Per device event the share of it during which some of the others run, on other streams of its device."""
    events = rank.trace.device_events
    begin, length = events["ts_ns"].to_numpy(), events["duration_ns"].to_numpy()
    devices, streams = events["device"].to_numpy(), events["stream"].to_numpy()
    out = np.zeros(len(events))
    for device, stream in events.select("device", "stream").unique().iter_rows():
        mine = (devices == device) & (streams == stream)
        beside = (devices == device) & ~mine & others
        one_class = np.zeros(int(beside.sum()), np.uint8)
        busy = class_timeline(begin[beside], (begin + length)[beside], one_class).cumulative(ANY)
        out[mine] = busy.within(begin[mine], (begin + length)[mine]) / np.maximum(length[mine], 1)
    return out
