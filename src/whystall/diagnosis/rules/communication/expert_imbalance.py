"""Experts on one rank that get more tokens than those on the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed, Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.collectives import EXCHANGE, are, collectives, met_by_all, node_of_row
from whystall.diagnosis.detectors.late_rank import late_rank, uneven_tokens
from whystall.diagnosis.detectors.rank_differences import uneven_kernels
from whystall.diagnosis.detectors.samples import code_of_lines, from_samples
from whystall.diagnosis.rule import Finder, Rule
from whystall.replay.graph import Change

CAUSE: Final = cause_beside(__name__)
_FEWEST_USUAL: Final = 3
_LEAST_LATE: Final = CAUSE.threshold("least_late")


def in_trace(case: Case) -> Iterator[Replayed]:
    """Kernels that differ from rank to rank where ranks exchange their inputs, at their mean over the ranks."""
    uneven = uneven_kernels(case)
    if uneven is None:
        return
    graph = case.replayed
    wanted = graph.duration.astype(np.float64)
    for rank in case.ranks:
        own = uneven.filter(pl.col("rank") == rank.rank)
        node = node_of_row(case, rank)[own["row"].to_numpy()]
        wanted[node[node >= 0]] = own["mean"].to_numpy()[node >= 0]
    _do_not_wait_for_others(case, wanted)
    sums = uneven.group_by("rank").agg(pl.col("ns").sum()).sort("ns", descending=True)
    busiest, most, mean = int(sums["rank"][0]), int(sums["ns"][0]), float(sums["ns"].mean())  # type: ignore[arg-type]
    spread = _above_mean(uneven)
    # Where another rank has most in each step, their sums over all steps are alike.
    one = most / max(mean, 1.0) - 1 >= spread / 2
    yield Replayed(
        cause=CAUSE.id,
        attributed_ns=round(spread * mean) // max(len(case.ranks[0].trace.steps), 1),
        evidence=(
            *((evidence.text("the rank with the most work", f"rank {busiest}"),) if one else ()),
            evidence.times("work of the rank with most, each time, over the mean of all", 1 + spread),
            evidence.text(
                "kernels that differ from rank to rank", ", ".join(sorted(set(uneven["name"].to_list())))[:200]
            ),
        ),
        removal=Change(duration=wanted.astype(np.int64)),
        method="replay: the uneven kernels at their mean over the ranks",
        ranks=(busiest,) if one else tuple(rank.rank for rank in case.ranks),
        uncertainty=0.15,
        rivals=("communication.straggler", "communication.exposed"),
    )


def _do_not_wait_for_others(case: Case, wanted: NDArray[np.float64]) -> None:
    """Shortens exchanges to which an unread rank came last to the duration of those to which all came together.

    Otherwise the wait for experts on unread ranks would stay.
    """
    if not case.summarised.ranks:
        return
    all_came: list[NDArray[np.int64]] = []
    waited: list[NDArray[np.int64]] = []
    for rank in case.ranks:
        found = collectives(case, rank)
        chosen = are(found, EXCHANGE) & (found.node >= 0)
        transfer = case.transfer_of[found.node[chosen]]
        met = met_by_all(case, rank, found)[chosen] & (transfer >= 0)
        all_came.append(transfer[met])
        waited.append(transfer[~met & (transfer >= 0)])
    usual, others = np.unique(np.concatenate(all_came)), np.unique(np.concatenate(waited))
    if len(usual) >= _FEWEST_USUAL:
        wanted[others] = np.minimum(wanted[others], np.median(case.replayed.duration[usual]))


def _above_mean(uneven: pl.DataFrame) -> float:
    """By how much the rank with most of a kernel is above the ranks' mean, over all of them."""
    each = uneven.group_by("name", "nth").agg(pl.col("ns").max().alias("most"), pl.col("mean").first())
    return float(each["most"].sum()) / max(float(each["mean"].sum()), 1.0) - 1


def in_samples(case: Case) -> Iterator[Sampled]:
    """The rank of a watched job on CPUs that works longest, if its experts multiply more rows than the others'."""
    found = late_rank(case)
    if found is None or found.late < _LEAST_LATE or found.idle < found.late:
        return
    more = uneven_tokens(case, found)
    if more is None:
        return
    yield from_samples(
        CAUSE.id,
        found.run,
        more.takes,
        evidence=(
            evidence.text("the rank with the most work", f"rank {found.run.rank}"),
            evidence.share("rows that its experts multiply above the mean of the ranks", more.rows),
            evidence.share("of the longest step, which these rows take", more.takes),
            evidence.time("its training thread works", round(found.work_ns), per="step"),
            evidence.time("that of the others, in the median, works", round(found.usual_ns), per="step"),
        ),
        saved=(more.takes * 0.7, more.takes, max(min(found.late, found.idle), found.above_mean)),
        ranks=found.hot,
        code=code_of_lines([line for line in found.run.places if line.part in ("forward", "backward")]),
        method="samples and recording: what its experts have more shared out among all",
        rivals=("communication.straggler", "communication.exposed"),
    )


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace", "device_events", "several_ranks")),
        Finder(in_samples, ("trace", "operators", "shapes", "samples", "no_device")),
    ),
)
