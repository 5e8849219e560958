"""How the compute of ranks differs: the same kernels, rank by rank, and those that take very different time."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from whystall.analysis.kernel_classes import COMMUNICATION, COMPUTE
from whystall.diagnosis.case import Case
from whystall.diagnosis.detectors.collectives import EXCHANGE, are, collectives
from whystall.trace.columns import codes, distinct

_UNEVEN: Final = 0.2
_EVEN: Final = 0.1
# Products are the work of experts: a smaller difference is enough where all other work takes the same on each rank.
_LEAST_UNEVEN: Final = 0.03
_FAR_FROM_EVEN: Final = 4
_LEAST_WEIGHT: Final = 0.1
# Layers that all tokens pass through on their own rank may be a small part of a job that is mostly experts.
_LEAST_EVEN: Final = 0.1


def work_times(case: Case, *, copies: bool = False) -> pl.DataFrame:
    """Compute kernels within steps, of all ranks; with ``copies`` all device events but communication.

    If no rank has marked steps, all of them count.

    Rank, row, name, how many of the name came before, and duration.
    """
    parts = []
    any_steps = any(not rank.trace.steps.is_empty() for rank in case.ranks)
    for rank in case.ranks:
        events = rank.trace.device_events
        of_class = rank.workings.classified.class_of
        chosen = of_class != COMMUNICATION if copies else of_class == COMPUTE
        inside = events["step"].is_not_null().to_numpy() if any_steps else np.ones(len(events), np.bool_)
        row = np.flatnonzero(chosen & inside)
        parts.append(
            pl.DataFrame(
                {
                    "rank": np.full(len(row), rank.rank, np.int64),
                    "row": row,
                    "name": pl.Series(distinct(events["name"]), dtype=pl.String).gather(codes(events["name"])[row]),
                    "ns": events["duration_ns"].to_numpy()[row],
                }
            )
        )
    table = pl.concat(parts)
    return table.with_columns(nth=pl.int_range(pl.len()).over("rank", "name"))


def uneven_kernels(case: Case) -> pl.DataFrame | None:
    """Kernels whose time varies strongly from rank to rank while the others' does not, with their mean over ranks.

    Applies only to ranks that exchange their inputs, as experts do.
    """
    key = ("uneven_kernels", -1)
    if key not in case.kept:
        case.kept[key] = _uneven(case)
    found: pl.DataFrame | None = case.kept[key]
    return found


def _uneven(case: Case) -> pl.DataFrame | None:
    if not any(are(collectives(case, rank), EXCHANGE).any() for rank in case.ranks):
        return None
    table = work_times(case)
    instances = table.group_by("name", "nth").agg(
        pl.col("ns").mean().alias("mean"), pl.col("ns").std().alias("apart"), pl.len().alias("ranks")
    )
    instances = instances.filter(pl.col("ranks") == len(case.ranks))
    names = instances.group_by("name").agg(
        (pl.col("apart") / pl.col("mean")).median().alias("apart"), pl.col("mean").sum().alias("weight")
    )
    products = pl.col("name").is_in(_of_families(case, "gemm", "grouped-gemm"))
    surely = max(_LEAST_UNEVEN, _FAR_FROM_EVEN * _usual_apart(names, _of_families(case, "gemm")))
    is_uneven = (pl.col("apart") > _UNEVEN) | (products & (pl.col("apart") > surely))
    # Attention differs with the sequences of a rank, independently of its experts.
    experts = ~pl.col("name").is_in(_of_families(case, "attention"))
    uneven, even = names.filter(is_uneven & experts), names.filter(~is_uneven & (pl.col("apart") <= _EVEN))
    if uneven.is_empty() or float(even["weight"].sum()) < float(uneven["weight"].sum()) * _LEAST_EVEN:
        return None
    return table.join(instances.select("name", "nth", "mean"), on=["name", "nth"]).join(
        uneven.select("name"), on="name", how="semi"
    )


def _of_families(case: Case, *families: str) -> list[str]:
    """Names of the kernels of some families."""
    found: set[str] = set()
    for rank in case.ranks:
        classified = rank.workings.classified
        chosen = np.isin(
            classified.family_of, [classified.families.index(one) for one in families if one in classified.families]
        )
        found |= {classified.names[number] for number in np.unique(classified.name_of[chosen]).tolist()}
    return sorted(found)


def _usual_apart(names: pl.DataFrame, dense: list[str]) -> float:
    """How far ranks are apart, as a share, in the kernels that differ least: dense products where there are some.

    Devices differ more in how fast they multiply than in how fast they copy.
    """
    own = names.filter(pl.col("name").is_in(dense))
    ordered = (names if own.is_empty() else own).sort("apart")
    enough = ordered.filter(pl.col("weight").cum_sum() >= _LEAST_WEIGHT * pl.col("weight").sum())
    return float(enough["apart"][0]) if len(enough) else 0.0
