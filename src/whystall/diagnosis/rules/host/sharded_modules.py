"""Modules that FSDP shards one by one, where a block of them could be sharded at once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.stretches import work_within
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.replay.graph import Mask

CAUSE: Final = cause_beside(__name__)
# FSDP2's marks of its work for a module: "FSDP::pre_forward (layers.0.attention)".
_HOOK: Final = re.compile(r"^FSDP::(?P<kind>\w+) \((?P<module>[^)]+)\)$")
_SMALL_MODULES: Final = CAUSE.threshold("small_modules")
_BLOCK: Final = re.compile(r"^(.*?\.)?\d+(?=\.|$)")


@dataclass(frozen=True, slots=True)
class _Hooks:
    """The outermost marks, by their begin, and the share of each that is saved where blocks are sharded."""

    marks: pl.DataFrame
    spared: NDArray[np.float64]
    surely: NDArray[np.float64]
    modules: int
    blocks: int


def in_trace(case: Case) -> Iterator[Replayed]:
    """Blocks several of whose modules have hooks of their own, on all ranks: they meet in the hooks' gathers."""
    found = {rank.rank: hooks for rank in case.ranks if (hooks := _hooks(rank)) is not None}
    if found:
        yield _by_blocks(case, found)


def _hooks(rank: RankCase) -> _Hooks | None:
    marks = rank.trace.annotations.select("ts_ns", "duration_ns", "thread", pl.col("name").cast(str))
    marks = marks.with_columns(
        kind=pl.col("name").str.extract(_HOOK.pattern, 1), module=pl.col("name").str.extract(_HOOK.pattern, 2)
    ).drop_nulls("module")
    marks = marks.sort("ts_ns", "duration_ns", descending=[False, True])
    if marks.is_empty():
        return None
    end = (marks["ts_ns"] + marks["duration_ns"]).to_numpy()
    marks = marks.with_columns(end=pl.Series(end))
    # Those within another one on its thread are part of that.
    marks = marks.filter(pl.col("end") > pl.col("end").cum_max().shift(1, fill_value=0).over("thread"))
    blocks = _merged(marks["module"].unique().sort().to_list())
    if not blocks:
        return None
    usual = marks.group_by("kind", "module").agg(pl.col("duration_ns").median().alias("usual"))
    fixed = usual.group_by("kind").agg(
        pl.col("usual").min().alias("least"), pl.col("usual").quantile(_SMALL_MODULES).alias("fixed")
    )
    marks = marks.join(fixed, on="kind", how="left", maintain_order="left")
    kept = {modules[0] for modules in blocks.values()}
    extra = {module for modules in blocks.values() for module in modules} - kept
    spared, surely = (
        np.where(
            marks["module"].is_in(list(extra)).to_numpy(),
            np.minimum(marks[column].to_numpy() / np.maximum(marks["duration_ns"].to_numpy(), 1), 1.0),
            0.0,
        )
        for column in ("fixed", "least")
    )
    return _Hooks(marks, spared, surely, len(extra) + len(kept), len(kept))


def _merged(modules: list[str]) -> dict[str, list[str]]:
    """The blocks with several sharded modules, and these."""
    block = {module: match[0] for module in modules if (match := _BLOCK.match(module))}
    several = {name for name, count in Counter(block.values()).items() if count > 1}
    return {name: [module for module in block if block[module] == name] for name in sorted(several)}


def _by_blocks(case: Case, found: dict[int, _Hooks]) -> Replayed:
    graph = case.replayed
    left, most, hooks = np.ones(len(graph.start)), np.ones(len(graph.start)), np.zeros(len(graph.start), np.bool_)
    for rank in case.ranks:
        if rank.rank in found:
            one = found[rank.rank]
            begin, end = one.marks["ts_ns"].to_numpy(), one.marks["end"].to_numpy()
            own = work_within(case, rank, begin, end)
            at = np.searchsorted(begin, graph.own_times(rank.rank, graph.start[own]), side="right") - 1
            left[own], most[own] = 1 - one.spared[at], 1 - one.surely[at]
            hooks |= own
    first = next(iter(found.values()))
    count = sum(len(one.marks) for one in found.values()) / len(found)
    steps = max(*(len(rank.trace.steps) for rank in case.ranks), 1)
    everything = np.ones(len(hooks), np.bool_)
    taken = case.time_of(hooks) // len(found)
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=taken,
        evidence=(
            evidence.count("modules that are sharded by themselves", first.modules),
            evidence.count("blocks that they are in", first.blocks),
            evidence.count("hooks of sharded modules", count / steps, per=case.per),
            evidence.time("a rank's host time in them", taken, case.events_of(hooks), per=case.per),
        ),
        removal=case.without(everything, _shared(case, hooks, left)),
        floor=case.without(everything, _shared(case, hooks, most)),
        method="replay: what hooks cost however small the module is, once for each block",
        ranks=tuple(sorted(found)),
        # Even the shortest is that of a module with parameters, whose time goes with them to the block.
        uncertainty=0.4,
        confidence=0.8,
        rivals=("host.launch-bound", "communication.small-messages", "host.small-operators"),
    )


def _shared(case: Case, hooks: Mask, left: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same for a gather that ranks share: the remaining share is that of the rank that saves least."""
    met = np.flatnonzero(hooks & (case.transfer_of >= 0))
    transfers = case.transfer_of[met]
    out = left.copy()
    out[transfers] = 0.0
    np.maximum.at(out, transfers, left[met])
    return out


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "operators")),))
