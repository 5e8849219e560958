"""Kernels that take longer beside a collective than the same kernels alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.kernel_classes import COMMUNICATION, COMPUTE
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.kernels import durations, share_beside, shortened
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.replay.graph import Mask
from whystall.trace.columns import codes
from whystall.trace.link import rows_of

CAUSE: Final = cause_beside(__name__)
_SLOWER: Final = CAUSE.threshold("slower")
_SLOWED: Final = CAUSE.threshold("slowed")
_LEAST_REPEATS: Final = CAUSE.threshold("least_repeats")
_STEADY: Final = CAUSE.threshold("steady")
# A kernel is alone if collectives run for no more than this share of it, beside them from that share on.
_ALONE: Final = 0.05
_BESIDE: Final = 0.5


@dataclass(frozen=True, slots=True)
class _Slowed:
    """Compute kernels beside collectives: their rows, the share of each beside one, and how much slower its like is."""

    row: NDArray[np.int64]
    beside: NDArray[np.float64]
    factor: NDArray[np.float64]
    """NaN for those that have no like alone."""
    overall: float
    kinds: int


def in_trace(case: Case) -> Iterator[Replayed]:
    """Kernels whose like, by name, blocks and shapes, runs both beside collectives and alone."""
    for rank in case.ranks:
        found = _slowed(rank)
        if found is not None:
            yield _as_fast_as_alone(case, rank, found)


def _slowed(rank: RankCase) -> _Slowed | None:
    table = _compute_kernels(rank)
    if table is None:
        return None
    kinds = table.group_by("kind").agg(
        pl.col("ns").filter(pl.col("beside") <= _ALONE).median().alias("alone"),
        pl.col("ns").filter(pl.col("beside") <= _ALONE).quantile(0.9).alias("longest"),
        (pl.col("beside") <= _ALONE).sum().alias("times_alone"),
        pl.col("ns").filter(pl.col("beside") >= _BESIDE).median().alias("slow"),
        pl.col("ns").filter(pl.col("beside") >= _BESIDE).sum().alias("weight"),
        (pl.col("beside") >= _BESIDE).sum().alias("times_beside"),
    )
    # Kernels that vary this much alone have another reason, such as other sizes.
    compared = kinds.filter(
        (pl.min_horizontal("times_alone", "times_beside") >= _LEAST_REPEATS)
        & (pl.col("longest") <= pl.col("alone") * _STEADY)
    ).with_columns(factor=pl.col("slow") / pl.col("alone"))
    slower = compared.filter(pl.col("factor") >= _SLOWER)
    weight = float(compared["weight"].sum() or 0)
    if not weight or float(slower["weight"].sum() or 0) < _SLOWED * weight:
        return None
    overall = weight / float((compared["weight"] / compared["factor"]).sum())
    own = table.join(compared.select("kind", "factor"), on="kind", how="left", maintain_order="left")
    own = own.filter(pl.col("beside") > _ALONE)
    return _Slowed(
        own["row"].to_numpy(),
        own["beside"].to_numpy(),
        own["factor"].fill_null(np.nan).to_numpy(),
        overall,
        len(compared),
    )


def _compute_kernels(rank: RankCase) -> pl.DataFrame | None:
    """Row, kind (name, blocks and shapes), length of each compute kernel, and its share beside a collective."""
    events = rank.trace.device_events
    class_of = rank.workings.classified.class_of
    row = np.flatnonzero(class_of == COMPUTE)
    if not len(row) or not (class_of == COMMUNICATION).any() or "grid" not in events.columns:
        return None
    operator = rows_of(events["operator"])[row]
    dims = np.append(_places(rank.trace.operators["input_dims"]), -1)
    table = pl.DataFrame(
        {
            "row": row,
            "name": codes(events["name"])[row],
            "grid": _places(events["grid"])[row],
            "shapes": dims[np.where(operator >= 0, operator, -1)],
            "ns": events["duration_ns"].to_numpy()[row],
            "beside": share_beside(rank, class_of == COMMUNICATION)[row],
        }
    ).filter((pl.col("grid") >= 0) & (pl.col("ns") > 0))
    return table.with_columns(kind=pl.struct("name", "grid", "shapes").rank("dense"))


def _places(column: pl.Series) -> NDArray[np.int64]:
    """Per row the place of its text among the distinct ones, or -1."""
    return column.to_physical().cast(pl.Int64).fill_null(-1).to_numpy()


def _as_fast_as_alone(case: Case, rank: RankCase, found: _Slowed) -> Replayed:
    duration = durations(rank)
    chosen: Mask = np.zeros(len(duration), np.bool_)
    chosen[found.row] = True
    least, most = duration.copy(), duration.copy()
    for target, factor in ((least, np.nan_to_num(found.factor, nan=1.0)), (most, found.factor)):
        slower = np.maximum(np.where(np.isnan(factor), found.overall, factor), 1.0)
        target[found.row] = duration[found.row] / (1 + (slower - 1) * found.beside)
    nodes = case.nodes(rank, device=chosen)
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=case.time_of(nodes),
        evidence=(
            evidence.time("kernels beside collectives", case.time_of(nodes), case.events_of(nodes), per=case.per),
            evidence.share("they take longer than the same kernels alone by", found.overall - 1),
            evidence.count("kinds of kernels compared", found.kinds),
        ),
        removal=shortened(case, rank, chosen, most),
        floor=shortened(case, rank, chosen, least),
        method="replay: kernels beside collectives as long as the same kernels alone",
        ranks=(rank.rank,),
        # Collectives of fewer channels leave compute more, and take longer themselves.
        uncertainty=0.5,
        confidence=0.8,
        rivals=("device.throttled", "communication.exposed"),
    )


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events")),))
