"""Matches the collectives of several ranks: one collective of several ranks is a meeting of these ranks.

Sequence numbers decide where all ranks recorded them. Elsewhere the order within the group does: the n-th of a kind and
size on one rank is the n-th on the others, unless the recordings began with different ones, or lost some. Then the
times at which collectives end decide: the ranks of a group see its end together, apart from their clocks' offsets. For
collectives that were enqueued before the recording began, other groups' times outweigh the order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.vocabulary.collectives import kind_named

# Kinds whose input and output may differ from rank to rank.
_UNEVEN: Final = frozenset({"all_to_all", "all_to_all_v", "gather", "scatter"})
_LANE: Final = ("group", "kind", "dtype", "size")
# Minimum share of the collectives of the shorter rank that a shift must leave for it to be tried.
_LEAST_OVERLAP: Final = 0.5
_MOST_SHIFTS: Final = 512
_FEW: Final = 4
# A shift is as good as the best one when its ends scatter by at most this many times more, plus this in ns.
_AS_GOOD: Final = 1.5
_JITTER_NS: Final = 2_000
# If both ranks recorded the same number, another order needs this many collectives and this much less scatter.
_MANY: Final = 8
_FAR_BETTER: Final = 4
_TOGETHER: Final = 0.1
"""Ranks on one clock leave a collective within such a share of the time from one to the next."""
# Ends that fall together so well, in their order, are not looked at further.
_SURE_NS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Attendance:
    """One rank's collectives: the rows of `communication_records`, with times in ns on the rank's own clock."""

    rank: int
    records: pl.DataFrame
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    on_host: bool = False
    """Whether a library on the host carried them out, as gloo does."""


def meetings(ranks: Sequence[Attendance]) -> list[NDArray[np.int64]]:
    """The number of the meeting of each rank's collectives; ranks that meet have the same number.

    A collective without a counterpart has a number of its own. The order of the ranks changes nothing but numbers.
    """
    if not any(len(one.start) for one in ranks):
        return [np.zeros(0, np.int64) for _ in ranks]
    table = _table(ranks)
    numbered = table.filter("numbered").with_columns(
        at="sequence", nth=pl.int_range(pl.len()).over("member", "group", "kind", "sequence")
    )
    ordered = _in_order(table.filter(~pl.col("numbered")))
    everything = pl.concat([numbered.select(ordered.columns), ordered])
    key = pl.struct(*_LANE, "numbered", "at", "nth")
    numbers = everything.select("member", "row", key.rank("dense").alias("number"))
    found = numbers.sort("member", "row").partition_by("member", as_dict=True)
    none = np.zeros(0, np.int64)
    return [
        found[(member,)]["number"].to_numpy().astype(np.int64) if (member,) in found else none
        for member in range(len(ranks))
    ]


def _table(ranks: Sequence[Attendance]) -> pl.DataFrame:
    """All ranks' collectives in order of their start: member (which of ``ranks``), row, lane, sequence number, end."""
    table = pl.concat(
        [
            one.records.select(
                pl.lit(member).alias("member"),
                pl.int_range(pl.len()).alias("row"),
                pl.col("group").fill_null(""),
                pl.col("group_ranks"),
                pl.Series("kind", _kinds(one), pl.String),
                pl.col("dtype").fill_null(""),
                pl.col("bytes").fill_null(-1).alias("size"),
                pl.col("sequence_number").alias("sequence"),
                pl.Series("start", one.start, pl.Int64),
                pl.Series("end", one.end, pl.Int64),
            )
            for member, one in enumerate(ranks)
        ]
    )
    named = pl.col("group_ranks").is_null().any().over("group")
    uneven = pl.col("kind").replace_strict({kind: kind_named(kind) in _UNEVEN for kind in table["kind"].unique()})
    whole = pl.col("sequence").is_not_null().all().over("group", "kind")
    between_two = pl.col("kind").str.starts_with(_MESSAGE)
    # In some recordings the two ranks of a message call its group differently. Names count where both ranks have them.
    names = pl.col("group").filter(between_two).n_unique().over("group_ranks", "kind")
    sides = pl.struct("member", "group").filter(between_two).n_unique().over("group_ranks", "kind")
    members = pl.col("member").filter(between_two).n_unique().over("group_ranks", "kind")
    apart = between_two & (sides < names * members)
    table = table.with_columns(
        # Some libraries give different groups of a job the same name.
        group=pl.when(apart)
        .then("group_ranks")
        .when(named)
        .then("group")
        .otherwise(pl.concat_str("group", pl.lit(" "), "group_ranks")),
        size=pl.when(uneven).then(-1).otherwise("size"),
        numbered=whole & ~between_two,
    )
    # A sequence number identifies a collective, even if ranks contribute different sizes.
    alike = [pl.when("numbered").then(pl.lit(other)).otherwise(name).alias(name) for name, other in _BY_NUMBER.items()]
    return table.with_columns(*alike).sort("member", "start", "row")


_MESSAGE: Final = "message from "
_BY_NUMBER: Final[dict[str, str | int]] = {"dtype": "", "size": -1}


def _kinds(one: Attendance) -> list[str]:
    """A message between the two ranks of a group is one thing, though one of them sends it and the other receives."""
    pairs = one.records.select("collective", "group_ranks").rows()
    known = {pair: _kind(pair[0], pair[1], one.rank) for pair in set(pairs)}
    return [known[pair] for pair in pairs]


def _kind(collective: str | None, group_ranks: str | None, rank: int) -> str:
    text = collective or ""
    members = [int(part) for part in re.findall(r"\d+", group_ranks or "")]
    if text not in ("send", "recv") or len(members) != 2:
        return text
    sender = rank if text == "send" else next((other for other in members if other != rank), rank)
    return f"{_MESSAGE}{sender}"


def _in_order(table: pl.DataFrame) -> pl.DataFrame:
    """The position of each collective within its kind (``nth``); ``at`` is 0, or separates those without a twin."""
    table = table.with_columns(nth=pl.int_range(pl.len()).over("member", *_LANE), at=pl.lit(0, pl.Int64))
    groups = table.partition_by("group", maintain_order=True)
    told = [group for group in groups if not _is_untold(group)]
    moved = _moves(max(told, key=len)) if len(told) < len(groups) and told else {}
    return pl.concat(
        [table.clear(), *(_as_one_numbers_them(group, moved if _is_untold(group) else {}) for group in groups)]
    )


def _is_untold(group: pl.DataFrame) -> bool:
    """Whether nothing is known of collectives but that they are some."""
    return bool((group["group"] == "").all() and (group["size"] < 0).all())


def _moves(group: pl.DataFrame) -> dict[int, float]:
    """Offsets that put the ends of each member of a group on one clock, in ns."""
    reference, lanes = _reference(group)
    out = {int(reference["member"][0]): 0.0}
    for own in group.partition_by("member"):
        parts = _lanes(own)
        shared = [(lanes[key], lane) for key, lane in parts.items() if key in lanes]
        apart = _clocks_apart(shared)
        if apart is None and shared:
            other, lane = max(shared, key=lambda pair: min(map(len, pair)))
            many = min(len(other), len(lane))
            apart = float(np.median(other["end"].to_numpy()[:many] - lane["end"].to_numpy()[:many]))
        if apart is not None:
            out.setdefault(int(own["member"][0]), apart)
    return out


def _lanes(own: pl.DataFrame) -> dict[tuple[object, ...], pl.DataFrame]:
    return {key: lane.sort("end") for key, lane in own.partition_by(_LANE, as_dict=True).items()}


def _reference(group: pl.DataFrame) -> tuple[pl.DataFrame, dict[tuple[object, ...], pl.DataFrame]]:
    """The member that has most collectives of a group, and these by lane."""
    reference = max(group.partition_by("member"), key=len)
    return reference, _lanes(reference)


def _as_one_numbers_them(group: pl.DataFrame, moved: Mapping[int, float]) -> pl.DataFrame:
    """A group's collectives, numbered as on the rank that has most of them.

    ``moved`` holds the members' clock offsets, as far as other groups determine them.
    """
    reference, lanes = _reference(group)
    first = int(reference["member"][0])
    out = [reference]
    for own in group.partition_by("member"):
        member = int(own["member"][0])
        if member == first:
            continue
        parts = _lanes(own)
        if member in moved and first in moved:
            apart: float | None = moved[member] - moved[first]
        else:
            apart = _clocks_apart([(lanes[key], lane) for key, lane in parts.items() if key in lanes])
        out += [own] if apart is None else [_nearest(lanes.get(key), lane, apart) for key, lane in parts.items()]
    return pl.concat(out)


def _clocks_apart(pairs: Sequence[tuple[pl.DataFrame, pl.DataFrame]]) -> float | None:
    """The offset of a rank's clock that makes the ends of the same collectives coincide, in ns.

    ``None`` where the n-th are the same.
    """
    enough = [pair for pair in pairs if min(map(len, pair)) >= _FEW] or list(pairs)
    if not enough:
        return None
    ends, own = (lane["end"].to_numpy() for lane in min(enough, key=lambda pair: len(pair[1])))
    short = min(len(ends), len(own))
    in_order = all(len(lane) == len(other) for lane, other in pairs)
    several = in_order and sum(len(lane) for _, lane in pairs) >= _FEW
    if several and short < _MANY and all(_met_elsewhere(*pair) for pair in pairs):
        return 0.0
    if in_order and (short < _MANY or _scatter(ends - own) <= _SURE_NS):
        return None
    least = max(int(short * _LEAST_OVERLAP), min(short, _MANY if in_order else _FEW))
    shifts = np.arange(least - len(own), len(ends) - least + 1)
    shifts = shifts[np.argsort(np.abs(shifts), kind="stable")][:_MOST_SHIFTS]
    scatter, apart = np.empty(len(shifts)), np.empty(len(shifts))
    for number, shift in enumerate(shifts.tolist()):
        first, last = max(shift, 0), min(len(ends), len(own) + shift)
        difference = ends[first:last] - own[first - shift : last - shift]
        apart[number] = np.median(difference)
        scatter[number] = _scatter(difference)
    good = scatter <= _AS_GOOD * scatter.min() + _JITTER_NS
    if in_order and scatter[0] <= _FAR_BETTER * scatter.min():
        return None
    return float(apart[good][np.argmin(np.abs(apart[good]))])


def _met_elsewhere(reference: pl.DataFrame, own: pl.DataFrame) -> bool:
    """Whether, on one clock, no n-th overlaps the n-th, and at one shift all do and end together as well.

    This happens if ranks of one machine were not recorded from the same step on: a few collectives show it in no other
    way. Clocks that are apart by about a whole step look the same: but real meetings end nearer together than that.
    """
    (start, end), (begin, until) = ((lane["start"].to_numpy(), lane["end"].to_numpy()) for lane in (reference, own))
    if ((start <= until) & (begin <= end)).any():
        return False
    near = _TOGETHER * float(np.median(np.diff(end))) if len(end) > 1 else 0.0
    for shift in range(1, int(len(own) * (1 - _LEAST_OVERLAP)) + 1):
        for first, last in ((slice(shift, None), slice(None, -shift)), (slice(None, -shift), slice(shift, None))):
            alike = (start[first] <= until[last]) & (begin[last] <= end[first])
            apart = end[first] - until[last]
            if alike.all() and float(np.median(np.abs(apart))) <= near and _scatter(apart) <= _scatter(end - until):
                return True
    return False


def _scatter(values: NDArray[np.int64]) -> float:
    return float(np.median(np.abs(values - np.median(values))))


def _nearest(reference: pl.DataFrame | None, own: pl.DataFrame, apart: float) -> pl.DataFrame:
    """A lane's collectives with the numbers of those of the reference that end nearest to them, each taken once."""
    alone = own.with_columns(at=pl.col("member").cast(pl.Int64) + 1)
    if reference is None:
        return alone
    ends, moved = reference["end"].to_numpy().astype(np.float64), own["end"].to_numpy() + apart
    to, back = _nearest_of(ends, moved), _nearest_of(moved, ends)
    spacing = float(np.median(np.diff(ends))) if len(ends) > 1 else np.inf
    meets = (back[to] == np.arange(len(own))) & (np.abs(ends[to] - moved) <= spacing / 2)
    nth = np.where(meets, reference["nth"].to_numpy()[to], own["nth"].to_numpy())
    return alone.with_columns(
        nth=pl.Series(nth, dtype=pl.Int64), at=pl.Series(np.where(meets, 0, alone["at"].to_numpy()), dtype=pl.Int64)
    )


def _nearest_of(values: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.int64]:
    """The place of the value that is nearest to each wanted one; values are in order."""
    right = np.clip(np.searchsorted(values, wanted), 0, len(values) - 1)
    left = np.maximum(right - 1, 0)
    return np.where(np.abs(values[left] - wanted) <= np.abs(values[right] - wanted), left, right)
