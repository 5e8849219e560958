"""Micro-batches of equal shape whose attention takes unequal time: sequences packed into them differ in length."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.backward import forward_operator_of, is_backward
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.collectives import node_of_row
from whystall.diagnosis.detectors.rank_differences import work_times
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.replay.graph import Change
from whystall.trace.link import rows_of

CAUSE: Final = cause_beside(__name__)
_UNEQUAL: Final = CAUSE.threshold("unequal")
_TOGETHER: Final = CAUSE.threshold("together")
_REST_ALIKE: Final = CAUSE.threshold("rest_alike")
_FEWEST: Final = int(CAUSE.threshold("fewest"))
# If no operator is linked (in a compiled or captured graph) the kernel's name shows its pass.
_OF_BACKWARD: Final = re.compile(r"bwd|backward|bprop|cutlassB|_d(q|k|v|kv)(_|$)", re.IGNORECASE)
_REST, _FORWARD, _BACKWARD = range(3)
_ATTENTION: Final = "attention"


def in_trace(case: Case) -> Iterator[Replayed]:
    """Attention whose forward and backward pass are longer and shorter together, while all else takes the same."""
    if not any((rank.workings.family == _ATTENTION).any() for rank in case.ranks):
        return
    table = _in_passes(case)
    if table["part"].n_unique() < 3:  # not a forward and a backward pass, and more
        return
    sums = table.pivot("part", index=["rank", "step"], values="ns", aggregate_function="sum").drop_nulls()
    if len(sums) - sums["rank"].n_unique() < _FEWEST:
        return
    # A common factor of a rank's steps (its device, its share of the layers) does not come from its inputs.
    own = sums.select(*(pl.col(str(part)) / pl.col(str(part)).mean().over("rank") - 1 for part in range(3))).to_numpy()
    rest, forward, backward = own.T
    attention = table.filter(pl.col("part") != _REST)
    unequal = _apart(attention)
    if not forward.any() or not backward.any():
        return
    together = float(np.corrcoef(forward, backward)[0, 1])
    if unequal < _UNEQUAL or together < _TOGETHER or rest.std() > _REST_ALIKE * forward.std():
        return
    yield _balanced(case, attention, unequal, together)


def _in_passes(case: Case) -> pl.DataFrame:
    """The compute kernels within steps: step, pass of attention or other, and how many of it came before."""
    ranks = {rank.rank: rank for rank in case.ranks}
    parts = []
    for (number,), own in work_times(case).group_by("rank", maintain_order=True):
        rank, row = ranks[int(number)], own["row"].to_numpy()
        step = rows_of(rank.trace.device_events["step"])[row]
        attends = rank.workings.family[row] == _ATTENTION
        part = np.where(attends, np.where(_is_backward(rank, row, own["name"]), _BACKWARD, _FORWARD), _REST)
        parts.append(own.drop("nth").with_columns(step=step, part=part))
    return pl.concat(parts).with_columns(nth=pl.int_range(pl.len()).over("rank", "name", "step"))


def _is_backward(rank: RankCase, row: NDArray[np.int64], name: pl.Series) -> NDArray[np.bool_]:
    """Which kernels are of a backward pass: by the operator that counts for them, else by name."""
    tree, owner = rank.workings.tree, rank.workings.events.owner[row]
    by_operator = np.append(is_backward(tree, forward_operator_of(rank.trace, tree)), False)[owner]
    return np.where(owner >= 0, by_operator, name.str.contains(f"(?i){_OF_BACKWARD.pattern}").to_numpy())


def _apart(attention: pl.DataFrame) -> float:
    """The standard deviation over the mean of the time of the same call of each step: that of the usual call."""
    calls = attention.group_by("rank", "name", "nth").agg(apart=pl.col("ns").std() / pl.col("ns").mean())
    return float(calls["apart"].median() or 0.0)  # type: ignore[arg-type]


def _balanced(case: Case, attention: pl.DataFrame, unequal: float, together: float) -> Replayed:
    """Each kernel of attention takes the mean of its step, over the ranks that call it equally often."""
    counts = attention.with_columns(calls=pl.len().over("rank", "name", "step"))
    evened = counts.with_columns(mean=pl.col("ns").mean().over("name", "step", "calls"))
    wanted = case.replayed.duration.astype(np.float64)
    for rank in case.ranks:
        own = evened.filter(pl.col("rank") == rank.rank)
        node = node_of_row(case, rank)[own["row"].to_numpy()]
        wanted[node[node >= 0]] = own["mean"].to_numpy()[node >= 0]
    above = evened.group_by("step", "rank").agg(ns=(pl.col("ns") - pl.col("mean")).clip(0).sum())
    late = above.group_by("step").agg(pl.col("ns").max())["ns"].mean()
    share = float(attention["ns"].sum()) / max(sum(int(_all(rank)) for rank in case.ranks), 1)
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=round(float(late or 0.0)),  # type: ignore[arg-type]
        evidence=(
            evidence.share("standard deviation of what the same call of attention takes from step to step", unequal),
            evidence.share("correlation of attention's forward with its backward pass", together),
            evidence.share("of the device's time is attention", share),
        ),
        removal=Change(duration=wanted.astype(np.int64)),
        method="replay: in each step, every call of attention takes the mean over ranks and micro-batches",
        ranks=tuple(rank.rank for rank in case.ranks),
        uncertainty=0.3,
        confidence=0.85,
        rivals=("communication.straggler", "communication.exposed", "pipeline.bubble", "pipeline.stage-imbalance"),
    )


def _all(rank: RankCase) -> int:
    return int(rank.trace.device_events["duration_ns"].sum())


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "several_ranks", "device_events", "steps")),))
