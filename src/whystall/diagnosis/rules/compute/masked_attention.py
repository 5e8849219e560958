"""Attention to masked keys: the rest of a cache, keys outside a window, other documents, later keys.

For a watched job on a CPU the masks of a few steps are examined (`whystall.capture`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whystall.cost.spec import Argument, TensorSpec
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.attention_scores import score_calls
from whystall.diagnosis.detectors.kernels import durations, shortened
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Change, Mask
from whystall.run_folder.observations import AttendedScores
from whystall.trace.columns import judged, matching
from whystall.trace.link import rows_of
from whystall.trace.recorded_sizes import all_sizes, first_size, sizes_by_argument

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

_MASK_AT: Final = {
    "aten::_scaled_dot_product_efficient_attention": 3,
    "aten::_efficient_attention_forward": 3,
    "aten::_scaled_dot_product_efficient_attention_backward": 4,
    "aten::_efficient_attention_backward": 4,
}
"""The place of the mask among the arguments; the query comes three places before it."""
_FORWARD: Final = 3
_ATTENTION: Final = "aten::scaled_dot_product_attention"
_PARENTS: Final = 3
_OF_16_BITS: Final = frozenset({"bfloat16", "float16"})
_LARGEST_HEAD: Final = 256
_FORWARD_REACHES: Final = CAUSE.threshold("forward_reaches")
_BACKWARD_REACHES: Final = CAUSE.threshold("backward_reaches")
_SEEN_BY_QUERY: Final = CAUSE.threshold("seen_by_query")
_SLOWER: Final = CAUSE.threshold("slower")

_FLASH: Final = Remedy(
    text="With a mask, scaled dot product attention runs the memory-efficient kernels: flash kernels take none. Pass "
    "no mask where it only hides later positions (is_causal=True), and unpadded sequences where it hides padding "
    '(attn_implementation="flash_attention_2" in Transformers, torch.nested). flex_attention takes other masks, and '
    "skips blocks that they hide.",
    patch="-F.scaled_dot_product_attention(q, k, v, attn_mask=mask)\n"
    "+F.scaled_dot_product_attention(q, k, v, is_causal=True)",
    risk="A mask that hides more than later positions, such as padding, must be kept in another form.",
)
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
        attended = case.facts.of_rank(rank.rank).attended
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


def on_a_gpu(case: Case) -> Iterator[Replayed]:
    """Calls of the memory-efficient kernels with a mask, which flash kernels compute faster without it."""
    for rank in case.ranks:
        peak = rank.workings.peak
        # Flash kernels need bfloat16's generation of tensor cores (compute capability 8.0).
        if not rank.on_device or peak is None or not peak.bf16_tflops:
            continue
        called = _with_mask(rank)
        if called:
            found = _by_flash(case, rank, called, peak.bf16_tflops * 1e12)
            if found is not None:
                yield found


class _Masked(NamedTuple):
    """A call of attention with a mask: its operator's row, and whether each query has keys of its own (if known)."""

    row: int
    by_query: bool | None
    backward: bool


def _with_mask(rank: RankCase) -> list[_Masked]:
    work = rank.workings.work
    rows = np.flatnonzero(matching(rank.trace.operators["name"], lambda name: name in _MASK_AT) & work.counted)
    found = []
    for row in rows.tolist():
        call = work.calls[work.recorded_of[row]] if work.recorded_of[row] >= 0 else None
        at = _MASK_AT[call.name] if call is not None else 0
        mask = call.arguments[at] if call is not None and len(call.arguments) > at else None
        if call is None or not isinstance(mask, TensorSpec) or not mask.shape or not _has_flash(call.arguments[at - 3]):
            continue
        found.append(_Masked(row, _by_query(mask, _given(rank, row)), at > _FORWARD))
    known = {one.by_query for one in found}
    unknown = known not in ({False, None}, {False})  # a backward pass has the mask of its forward pass
    return [one._replace(by_query=unknown if one.by_query is None else one.by_query) for one in found]


def _by_query(mask: TensorSpec, given: tuple[int, ...]) -> bool | None:
    """Whether a mask has a row of its own for each query; ``given`` is its shape before it was expanded, if known."""
    if len(mask.shape) < _OF_PRODUCT or mask.shape[-2] == 1 or given[-2:-1] == (1,):
        return False
    if mask.strides is not None and len(mask.strides) >= _OF_PRODUCT:
        return mask.strides[-2] != 0
    return True if given else None


def _given(rank: RankCase, row: int) -> tuple[int, ...]:
    """The shape of the mask that the attention which a call belongs to was given; empty where it is not known."""
    table = rank.trace.operators
    parents = rows_of(table["parent"])
    for _ in range(_PARENTS):
        row = int(parents[row])
        if row < 0:
            return ()
        if str(table["name"][row]) == _ATTENTION:
            mask = sizes_by_argument(str(table["input_dims"][row] or "[]"))[_FORWARD : _FORWARD + 1]
            return mask[0][0] if mask and len(mask[0]) == 1 else ()
    return ()


def _has_flash(query: Argument) -> bool:
    """Whether flash kernels take such queries: 16 bits, and heads of at most 256."""
    return isinstance(query, TensorSpec) and query.dtype in _OF_16_BITS and query.shape[-1] <= _LARGEST_HEAD


def _by_flash(case: Case, rank: RankCase, called: list[_Masked], peak: float) -> Replayed | None:
    work, took = rank.workings, durations(rank)
    owner, flops = work.events.owner, work.flops()
    calls = np.zeros(len(rank.trace.operators) + 1, np.bool_)
    calls[[one.row for one in called]] = True
    chosen = calls[owner]  # the last row is that of events without an owner
    rate, seen = np.ones(len(calls)), np.ones(len(calls))
    for one in called:
        rate[one.row] = peak * (_BACKWARD_REACHES if one.backward else _FORWARD_REACHES)
        seen[one.row] = _SEEN_BY_QUERY if one.by_query else 1.0
    due_ns = flops / rate[owner] * 1e9
    spent, due = (np.bincount(owner[chosen], value[chosen], len(calls)).astype(float) for value in (took, due_ns))
    left = np.clip(due / np.maximum(spent, 1), 0.0, 1.0)
    if not chosen.any() or not (due > 0).any():
        return None
    left[due == 0] = 1.0
    nodes = case.nodes(rank, device=chosen)
    per_step = case.time_of(nodes)

    def at(share: NDArray[np.float64]) -> Change:
        return shortened(case, rank, chosen, took * share[owner])

    return Replayed(
        cause=CAUSE.id,
        attributed_ns=per_step,
        evidence=(
            evidence.time("kernels of attention with a mask", per_step, case.events_of(nodes), per=case.per),
            evidence.share("of their time that flash kernels take for all scores", _mean(left, spent)),
        ),
        removal=at(left * np.sqrt(seen)),
        floor=at(np.minimum(left * _SLOWER, 1.0)),
        ceiling=at(left * seen),
        method="replay: the same scores at the rate of flash kernels; a mask by query may hide half of them",
        code=code_of(case, nodes),
        ranks=(rank.rank,),
        uncertainty=0.2,
        confidence=0.75,
        detail="a mask selects the memory-efficient kernels",
        rivals=("compute.unfused-attention", "compute.padding"),
        remedy=_FLASH if any(one.by_query for one in called) else CAUSE.remedies["same_for_all"],
    )


def _mean(left: NDArray[np.float64], spent: NDArray[np.float64]) -> float:
    return float((left * spent).sum() / max(spent.sum(), 1.0))


RULE = Rule(
    CAUSE,
    (
        Finder(on_a_cpu, ("trace", "no_device", "operators", "shapes")),
        Finder(on_a_gpu, ("trace", "device_events", "operators", "shapes", "peak")),
    ),
)
