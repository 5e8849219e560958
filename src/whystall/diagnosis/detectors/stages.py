"""Stages of a pipeline: their ranks, their compute in a step, their number of micro-batches."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

import numpy as np
import polars as pl

from whystall.analysis.groups import joined
from whystall.analysis.kernel_classes import COMPUTE
from whystall.diagnosis.case import Case
from whystall.diagnosis.detectors.collectives import (
    POINT_TO_POINT,
    Collectives,
    are,
    collectives,
    ended_ns,
    has_stages,
    met_by_all,
    step_of,
)
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.trace.columns import matching

_LEAST_BETWEEN: Final = 0.1
# If a rank of a group was not recorded, most messages lack their counterpart; recordings that begin apart lack a few.
_LEAST_MET: Final = 0.5
_ENGINE: Final = "autograd::engine"


@dataclass(frozen=True, slots=True)
class Stages:
    """The ranks of each stage, its replicas, from the first stage to the last; by rank its compute and that per step.

    A job that is data or tensor parallel as well has several pipelines, whose stages do the same.
    """

    ranks: tuple[tuple[int, ...], ...]
    nodes: dict[int, Mask]
    per_step_ns: dict[int, int]

    @property
    def stage_ns(self) -> list[int]:
        """Compute of each stage in a step: its usual replica's, the faster one's of two."""
        return [sorted(self.per_step_ns[rank] for rank in own)[(len(own) - 1) // 2] for own in self.ranks]

    @property
    def mean_ns(self) -> float:
        """The mean compute of a stage in a step."""
        return float(np.mean(self.stage_ns))

    def replicas_of(self, rank: int) -> tuple[int, ...]:
        """The other ranks of a rank's stage."""
        return next(tuple(one for one in own if one != rank) for own in self.ranks if rank in own)


def stages(case: Case) -> Stages | None:
    """The stages of a job; ``None`` if it has none, or no pipeline was recorded completely."""
    if not has_stages(case):
        return None
    found = pipelines(case)
    if not found or len({len(one) for one in found}) > 1:
        return None
    ranks = tuple(zip(*found, strict=True))
    known = {rank for one in found for rank in one}
    computes = {
        rank.rank: case.nodes(rank, device=rank.workings.classified.class_of == COMPUTE)
        for rank in case.ranks
        if rank.rank in known
    }
    return Stages(ranks, computes, {rank: case.time_of(nodes) for rank, nodes in computes.items()})


def sends_through(case: Case) -> bool:
    """Whether some rank of a job on CPUs computes between receiving and sending in a step, as stages do.

    Ranks that exchange their own data, such as averages or the edges of a grid, compute before that or after it.
    """
    return case.graph is not None and has_stages(case) and any(_computes_between(case, rank) for rank in case.ranks)


def turns_of(case: Case, own: list[int]) -> int:
    """How many times in a step one stage of a pipeline on CPUs waits for gradients of its sends; 0: it does not wait.

    The first stage begins by sending, all others by receiving, and compute before they send. If each of its turns has
    an equal number of sends and then receives, it keeps one micro-batch in flight; a schedule that fills begins with
    more.
    """
    ranks = {rank.rank: rank for rank in case.ranks}
    turns = {one: _turns(ranks[one], collectives(case, ranks[one])) for one in own}
    firsts = [one for one, messages in turns.items() if messages and messages[0].sent]
    if len(firsts) != 1 or not all(_computes_between(case, ranks[one]) for one in own if one not in firsts):
        return 0
    messages = turns[firsts[0]]
    sends, gets = messages[::2], messages[1::2]
    if len({one.count for one in sends}) != 1 or len({one.count for one in gets}) != 1:
        return 0
    if len(sends) != len(gets) or not all(map(_are_gradients, sends, gets)):
        return 0
    # All sends and then all gets: all micro-batches are on their way.
    return len(sends) if len(sends) > 1 or sends[0].count == 1 else 0


@dataclass(frozen=True, slots=True)
class _Row:
    """Messages of a rank in a row: whether it sent them, how many, and whether it went back before the next ones."""

    sent: bool
    count: int
    went_back: bool
    sizes: tuple[int, ...] = field(compare=False)
    """Their bytes, which differ from step to step where batches do."""


def _are_gradients(sent: _Row, got: _Row) -> bool:
    """Whether the reply has the size of the message, or of a part of it, and a backward pass follows.

    Otherwise the next messages may depend on the reply, as on a token that is chosen.
    """
    return got.went_back and min(got.sizes) > 0 and Counter(got.sizes) <= Counter(sent.sizes)


def _turns(rank: RankCase, found: Collectives) -> list[_Row]:
    """A rank's rows of messages, sent ones and others in turn, in its most usual step."""
    operators = rank.trace.operators
    back = np.sort(operators["ts_ns"].to_numpy()[matching(operators["name"], lambda name: name.startswith(_ENGINE))])
    at = np.flatnonzero(are(found, POINT_TO_POINT))
    at = at[np.argsort(found.start[at], kind="stable")]
    step = step_of(rank, found)[at]
    until = np.append(found.start[at[1:]], np.iinfo(np.int64).max)
    went_back = np.diff(np.searchsorted(back, np.column_stack([found.start[at], until])), axis=1)[:, 0] > 0
    seen = Counter(
        tuple(
            _Row(sent, len(row), bool(went_back[row[-1]]), tuple(found.size[at[row]].tolist()))
            for sent, group in groupby(
                np.flatnonzero(step == number).tolist(), key=lambda one: found.kind[at[one]] == "send"
            )
            for row in [list(group)]
        )
        for number in np.unique(step[step >= 0]).tolist()
    )
    return list(seen.most_common(1)[0][0]) if seen else []


def _computes_between(case: Case, rank: RankCase) -> bool:
    found, operators = collectives(case, rank), rank.trace.operators
    outermost = operators["parent"].is_null().to_numpy()
    begin = operators["ts_ns"].to_numpy()[outermost]
    total = np.append(
        0, np.cumsum(operators["duration_ns"].to_numpy()[outermost][order := np.argsort(begin, kind="stable")])
    )
    begin = begin[order]
    step, at = step_of(rank, found), np.flatnonzero(are(found, POINT_TO_POINT) & (found.node >= 0))
    at = at[np.argsort(found.start[at], kind="stable")]
    sends = np.array([found.kind[one] == "send" for one in at.tolist()], np.bool_)
    end = ended_ns(case, found, at)
    gets = np.flatnonzero(~sends[:-1] & sends[1:] & (step[at[:-1]] == step[at[1:]]) & (step[at[:-1]] >= 0))
    first, last = (np.searchsorted(begin, instants) for instants in (end[gets], found.start[at[gets + 1]]))
    between = (total[np.maximum(last, first)] - total[first]).sum()
    return bool(between >= _LEAST_BETWEEN * max(int(total[-1]), 1))


def pipelines(case: Case) -> list[list[int]]:
    """The ranks that pass messages on to each other, each pipeline from its first stage to its last.

    Ranks are numbered from the first stage to the last in every framework. A pipeline with messages from or to an
    unrecorded rank is left out: most of those of their group have no counterpart. A few have none where recordings of
    ranks begin or end apart.
    """
    broken: set[int] = set()
    through: dict[int, list[int]] = {}
    for rank in case.ranks:
        found = collectives(case, rank)
        messages = are(found, POINT_TO_POINT) & (found.node >= 0)
        met = met_by_all(case, rank, found)
        groups = np.array(found.group, object)[messages]
        if any(met[messages][groups == group].mean() < _LEAST_MET for group in set(groups.tolist())):
            broken.add(rank.rank)
        for transfer in np.unique(case.transfer_of[found.node[messages]]).tolist():
            if transfer >= 0:
                through.setdefault(transfer, []).append(rank.rank)
    return [own for own in joined(through.values()) if len(own) > 1 and not broken & set(own)]


def micro_batches(case: Case) -> int:
    """How many messages one stage sends the next in a step.

    In a group of the whole pipeline, stages in the middle send both ways: then the first and the last decide.
    """
    counts = []
    for rank in case.ranks:
        found = collectives(case, rank)
        sends = np.array([kind == "send" for kind in found.kind], np.bool_)
        if sends.any():
            step = step_of(rank, found)[sends]
            groups = [group for group, sent in zip(found.group, sends.tolist(), strict=True) if sent]
            table = pl.DataFrame({"step": step, "group": groups}).filter(pl.col("step") >= 0)
            own = table.group_by("step", "group").len()["len"]
            if len(own):
                counts.append(int(np.median(own.to_numpy())))
    return min(counts, default=0)
