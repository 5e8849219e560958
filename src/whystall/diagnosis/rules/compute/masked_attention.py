"""Attention to masked keys: the rest of a cache, keys outside a window, other documents, later keys.

For a watched job on a CPU the masks of a few steps are examined (`whystall.capture`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.attention_scores import score_calls
from whystall.diagnosis.detectors.recorded_sizes import all_sizes, first_size
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Mask
from whystall.run_folder.description import AttendedScores
from whystall.trace.columns import judged, matching

CAUSE: Final = cause_beside(__name__)
_MOST_SEEN: Final = CAUSE.threshold("most_seen")
_MOST_IN_GROUPS: Final = CAUSE.threshold("most_in_groups")
_AROUND: Final = CAUSE.threshold("around")
_AROUND_A_WINDOW: Final = CAUSE.threshold("around_a_window")
_FEWEST_IN_WINDOWS: Final = CAUSE.threshold("fewest_in_windows")
_CAUSAL_BLOCK: Final = int(CAUSE.threshold("causal_block"))
_FILLS_OR_COPIES: Final = frozenset({"aten::fill_", "aten::zero_", "aten::copy_", "aten::clone", "aten::index_copy"})
_FUSED: Final = "aten::_scaled_dot_product_"
_HEADS_FIRST: Final = 4
_FEWEST_DIMENSIONS: Final = 3
_OF_PRODUCT: Final = 2

_TO_FEWER_KEYS: Final = Remedy(
    text="Cut keys, values and mask to what some query sees before attention is called: of a cache to what is written "
    "so far, or let it grow (DynamicCache in Transformers; torch.cat, or blocks of 256 positions); of a source that is "
    "padded to the longest of the batch.",
    patch=CAUSE.patch,
    risk=CAUSE.risk,
)
_IN_WINDOWS: Final = Remedy(
    text="Each query sees the keys near it: fold the sequence into blocks as wide as the window and let each attend to "
    "itself and its neighbours. On a GPU flex_attention with a block mask leaves out what is hidden.",
    patch="-F.scaled_dot_product_attention(q, k, v, attn_mask=band)\n"
    "+blocks = F.pad(k, (0, 0, w, w)).unfold(2, 3 * w, w).transpose(-1, -2)  # the same for v; q.unflatten(2, (-1, "
    "w))\n"
    "+F.scaled_dot_product_attention(q_blocks, blocks, v_blocks, attn_mask=mask_of_a_block).flatten(2, 3)",
    risk="The mask of a block must hide the padding at both ends and the window's edges.",
)
_BY_DOCUMENT: Final = Remedy(
    text="Most groups of queries see nothing of most groups of keys. Where the mask keeps documents, graphs or windows "
    "apart, attend to each by itself, those of one length as a batch (torch.nested for others, or a loop over their "
    "lengths). On a GPU flex_attention with a block mask leaves out what is hidden.",
    patch=None,
    risk="Groups of very different lengths need padding among themselves.",
)
_CALLED_CAUSAL: Final = Remedy(
    text="The mask hides what comes later and nothing else: say so instead of giving it, and what is hidden is left "
    "out of the work.",
    patch="-F.scaled_dot_product_attention(q, k, v, attn_mask=mask)\n"
    "+F.scaled_dot_product_attention(q, k, v, is_causal=True)",
    risk="None known: with equal numbers of queries and keys it is the same mask.",
)


class _Form(NamedTuple):
    """The remaining share of attention of some sizes, and the remedy."""

    left: float
    least: float
    most: float
    seen: float
    what: str
    remedy: Remedy


def on_a_cpu(case: Case) -> Iterator[Replayed]:
    """By recorded sizes: the attention whose masks were looked at."""
    for rank in case.ranks:
        attended = case.facts.attended.get(rank.rank, ())
        if not attended:
            continue
        fused = _fused(rank)
        scores = score_calls(rank, 1)
        for one in attended:
            sized = _of_size(rank, fused | scores, one)
            form = _form(one, written_out=bool((sized & ~fused).any()))
            if form is not None and sized.any():
                fewer_keys = form.remedy is _TO_FEWER_KEYS
                yield _found(case, rank, sized | _of_cache(rank, sized, one) if fewer_keys else sized, form, one)


def _found(case: Case, rank: RankCase, sized: Mask, form: _Form, one: AttendedScores) -> Replayed:
    expected, least, most = (
        case.operator_values(rank, np.where(sized, left, 1.0), 1.0) for left in (form.left, form.least, form.most)
    )
    nodes = case.work_of(rank, sized)
    per_step = case.time_of(nodes)
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=per_step,
        evidence=(
            evidence.time("attention with such a mask", per_step, case.events_of(nodes), per=case.per),
            evidence.share(form.what, form.seen),
        ),
        removal=case.without(nodes, expected),
        floor=case.without(nodes, most),
        ceiling=case.without(nodes, least),
        method="replay: attention over what the mask leaves",
        code=code_of(case, nodes),
        ranks=(rank.rank,),
        uncertainty=0.2,
        confidence=0.85,
        detail=f"{one.queries:,} queries, {one.keys:,} keys",
        rivals=("compute.unfused-attention", "compute.padding", "compute.redundant-work"),
        remedy=form.remedy,
    )


def _form(one: AttendedScores, *, written_out: bool) -> _Form | None:
    """The form for one kind of scores; with equal numbers of queries and keys, hidden keys pad a batch."""
    if one.queries != one.keys and one.kept <= _MOST_SEEN:
        seen = one.kept
        return _Form(seen, seen, min(1.3 * seen + 0.1, 1.0), seen, "of the keys seen by any query", _TO_FEWER_KEYS)
    if one.causal and not written_out:
        blocks = -(-one.keys // _CAUSAL_BLOCK)
        left = (1 + 1 / blocks) / 2
        return (
            _Form(left, left, min(left + 0.1, 1.0), 0.5, "of the scores seen", _CALLED_CAUSAL) if blocks > 1 else None
        )
    pays = one.tiles <= _MOST_IN_GROUPS and not one.causal and (not one.sliding or one.keys >= _FEWEST_IN_WINDOWS)
    left = (_AROUND_A_WINDOW if one.sliding else _AROUND) * one.tiles
    if pays and left < 1:
        remedy = _IN_WINDOWS if one.sliding else _BY_DOCUMENT
        return _Form(left, left / 2, min(1.6 * left, 1.0), one.tiles, "of the scores, in groups, seen", remedy)
    return None


def _fused(rank: RankCase) -> Mask:
    """The calls of fused attention, and of its backward pass."""
    return matching(rank.trace.operators["name"], lambda name: name.startswith(_FUSED))


def _of_cache(rank: RankCase, sized: Mask, one: AttendedScores) -> Mask:
    """Operators that fill or copy tensors of the keys' size: the cache when it is made, or for each head of a group."""
    table = rank.trace.operators
    given = judged(table.select("input_dims")[np.flatnonzero(sized)], all_sizes)
    caches = {size for sizes in given for size in sizes if len(size) == _HEADS_FIRST and size[-2] == one.keys}
    named = matching(table["name"], _FILLS_OR_COPIES.__contains__)
    out = np.zeros(len(table), np.bool_)
    rows = np.flatnonzero(named)
    out[rows] = judged(table.select("input_dims")[rows], lambda dims: first_size(dims) in caches)
    return out


def _of_size(rank: RankCase, calls: Mask, one: AttendedScores) -> Mask:
    """The calls with the queries and keys of ``one``, or with scores of that size."""
    table = rank.trace.operators
    out = np.zeros(len(table), np.bool_)
    rows = np.flatnonzero(calls)
    wanted = (one.queries, one.keys)

    def of_size(name: str, dims: str | None) -> bool:
        sizes = [size for size in all_sizes(dims) if len(size) >= _FEWEST_DIMENSIONS]
        if name.startswith(_FUSED):
            given = [size for size in sizes if len(size) == _HEADS_FIRST]
            first = 1 if name.endswith("_backward") else 0
            return tuple(size[-2] for size in given[first : first + 2]) == wanted
        ends = {size[-2:] for size in sizes}
        if len(sizes) >= _OF_PRODUCT:
            left, right = sizes[-2:]
            ends |= {(left[-2], right[-1])} if left[-1] == right[-2] else set()
        return wanted in ends or wanted[::-1] in ends

    out[rows] = judged(table.select("name", "input_dims")[rows], of_size)
    return out


RULE = Rule(CAUSE, (Finder(on_a_cpu, ("trace", "no_device", "operators", "shapes")),))
