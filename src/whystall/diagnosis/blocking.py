"""How long a step waits for each kind of collective of each parallel dimension, by the replay.

A transfer beside compute may still delay later work, and an exposed one may fall into another wait: its cost is the
difference in a replay with transfers that take no time. Ranks that arrive late stay late in it.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis.case import Case
from whystall.diagnosis.detectors.collectives import Collectives, collectives, has_stages, in_rings, spent_ns
from whystall.diagnosis.finding import Blocking
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.vocabulary.collectives import kind_named
from whystall.vocabulary.dimensions import Dimension, dimension_named

_MOST_ROWS: Final = 8
_LEAST_SHARE: Final = 0.002
"""Share of a step below which a collective is not replayed."""
_LARGE_BYTES: Final = 1 << 16
"""A smaller sum may be a count or a norm, which does not show the purpose of a group."""
_FIRST: Final = np.iinfo(np.int64).min
_NEVER: Final = np.iinfo(np.int64).max
_EXCHANGES: Final = frozenset({"all_to_all", "all_to_all_v"})
_TO_EXPERTS: Final = frozenset({"combine", "dispatch", "dispatch_layout", "notify"})
"""DeepEP's: tokens go to experts, and their results come back."""
_SUMS: Final = frozenset({"all_reduce", "reduce_scatter"})


class _Key(NamedTuple):
    """The key of a row: all groups of one dimension, or (where that is unknown) groups of one size."""

    kind: str
    dimension: Dimension | None
    ranks: int


def blocking(case: Case) -> list[Blocking]:
    """A row for each kind of collective of a dimension, and one for a dimension with several; the largest delay first.

    Empty where nothing was replayed or no collective takes time that counts.
    """
    key = ("blocking", -1)
    if key not in case.kept:
        case.kept[key] = [] if case.graph is None else _rows(case)
    found: list[Blocking] = case.kept[key]
    return found


def _rows(case: Case) -> list[Blocking]:
    nodes = _nodes(case)
    least = _LEAST_SHARE * case.step_ns
    spent = {key: spent_ns(case, mask) for key, mask in nodes.items()}
    chosen = sorted((key for key in nodes if spent[key] >= least), key=lambda key: (-spent[key], key.kind, key.ranks))
    rows = [_row(case, nodes[key], key.dimension, key.kind, key.ranks, spent[key]) for key in chosen[:_MOST_ROWS]]
    for dimension, count in Counter(key.dimension for key in chosen).items():
        if dimension is not None and count > 1:
            keys = [key for key in nodes if key.dimension == dimension]
            together = np.logical_or.reduce([nodes[key] for key in keys])
            rows.append(_row(case, together, dimension, None, max(key.ranks for key in keys), spent_ns(case, together)))
    return sorted(rows, key=lambda row: (-row.blocking_ns, -row.transfer_ns, row.dimension or "", row.collective or ""))


def _row(case: Case, nodes: Mask, dimension: Dimension | None, kind: str | None, ranks: int, spent: int) -> Blocking:
    free = case.without(case.with_transfers(nodes))
    saved = max(case.length_ns() - case.length_ns(free), 0)
    # Over all steps: the window ends with the last step's compute, and may leave out the collectives at its end.
    steps = sum(max(len(rank.trace.steps), 1) for rank in case.ranks)
    calls = sum(_calls(case, rank, nodes) for rank in case.ranks) / steps
    return Blocking(
        dimension=dimension,
        collective=kind,
        group_size=int(ranks) or None,
        calls_per_step=round(calls, 2),
        transfer_ns=spent,
        blocking_ns=saved // max(case.steps, 1),
    )


def _calls(case: Case, rank: RankCase, nodes: Mask) -> int:
    """How many of the nodes are a rank's, in its steps if it has any."""
    own = np.flatnonzero(nodes & (case.replayed.rank == rank.rank))
    return int(np.count_nonzero(case.step_of(rank, own) >= 0)) if len(rank.trace.steps) else len(own)


def _nodes(case: Case) -> dict[_Key, Mask]:
    """The nodes of all ranks' collectives by kind and dimension."""
    out: dict[_Key, Mask] = {}
    for rank in case.ranks:
        found = collectives(case, rank)
        dimension_of = _dimensions(case, rank, found)
        sizes = found.ranks.tolist()
        keys = [
            _Key(kind_named(kind) or kind, dimension_of[group], size)
            for kind, group, size in zip(found.kind, found.group, sizes, strict=True)
        ]
        for key in dict.fromkeys(keys):
            own = found.nodes(case, np.array([each == key for each in keys], np.bool_))
            out[key] = out[key] | own if key in out else own
    return out


def _dimensions(case: Case, rank: RankCase, found: Collectives) -> dict[str, Dimension | None]:
    """The dimension of each of a rank's groups: from its description, else from its collectives and their times."""
    described = {group.name: dimension_named(group.description) for group in rank.trace.metadata.groups}
    groups = np.array(found.group, object)
    return {
        name: described.get(name) or _by_use(case, rank, found, np.flatnonzero(groups == name))
        for name in dict.fromkeys(found.group)
    }


def _by_use(case: Case, rank: RankCase, found: Collectives, own: NDArray[np.intp]) -> Dimension | None:
    """By messages, by kernels that send to experts, by exchanges beside products of these, or by sums of many bytes.

    Messages around a ring pass keys on. Sums before a backward pass are of slices, after and in it of replicas.
    """
    kinds = {kind_named(found.kind[at]) or found.kind[at] for at in own.tolist()}
    if kinds <= {"send", "recv", "send_recv"}:
        return "pipeline" if has_stages(case) else "context" if in_rings(case) else None
    # Heads are exchanged by context parallelism as tokens are: products of groups of rows are experts' alone.
    if kinds <= _TO_EXPERTS or (kinds <= _EXCHANGES and _has_experts(rank)):
        return "expert"
    sums = own[[kind_named(found.kind[at]) in _SUMS and found.size[at] >= _LARGE_BYTES for at in own.tolist()]]
    if not len(sums):
        return None
    if not rank.trains:  # or their launches were not recorded
        return None
    began = found.start[sums] if found.row is None else rank.launch_time[found.row[sums]]
    if (began < 0).any():
        return None
    return "tensor" if _before_backward(rank, began).any() else "data"


def _has_experts(rank: RankCase) -> bool:
    classified = rank.workings.classified
    number = classified.families.index("grouped-gemm") if "grouped-gemm" in classified.families else -1
    return bool((classified.family_of == number).any())


def _before_backward(rank: RankCase, at: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which times lie in a step before its first backward operator."""
    backward = np.sort(rank.trace.operators["ts_ns"].to_numpy()[rank.backward])
    steps = np.concatenate([[_FIRST], np.sort(rank.trace.steps["ts_ns"].to_numpy()), [_NEVER]])
    step = np.searchsorted(steps, at, side="right") - 1
    # The first backward operator from the step's begin on; without one before the next step it is no evidence.
    first = np.append(backward, _NEVER)[np.searchsorted(backward, steps[step])]
    found: NDArray[np.bool_] = (at < first) & (first < steps[step + 1])
    return found
