"""Work on padding: batches whose computed positions exceed their real ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.intervals import within
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of, made_at
from whystall.json_text import parse_json
from whystall.run_folder.observations import PaddedBatches
from whystall.trace.columns import judged, matching

CAUSE: Final = cause_beside(__name__)
_LEAST_BEYOND: Final = CAUSE.threshold("least_beyond")
_LEAST_UNEQUAL: Final = CAUSE.threshold("least_unequal")
_LEFT_IN_BUCKETS: Final = CAUSE.threshold("left_in_buckets")
_CALL_NS: Final = CAUSE.threshold("call_ns")
_LAUNCH_NS: Final = CAUSE.threshold("launch_ns")

# Operators that compute scores within themselves: `aten::_scaled_dot_product_flash_attention_for_cpu`.
_ATTENTION: Final = re.compile(r"scaled_dot_product|flash_attention|efficient_attention")

_TO_THE_LONGEST: Final = Remedy(
    text="Pad each batch to its own longest sample and not to a fixed length, in the function that makes the batch "
    '(tokenizer(..., padding="longest"), DataCollatorWithPadding, pad_sequence); then bucket samples by length.',
    patch="limit = max(len(sample) for sample in samples)  # of this batch, and no constant\n"
    'batch = tokenizer.pad(samples, padding="longest", return_tensors="pt")  # the same in Transformers',
    risk="Shapes change from batch to batch: compile with dynamic=True, or pad to multiples (pad_to_multiple_of).",
)
_BUCKETS: Final = Remedy(
    text="Make batches of samples of similar length (sort within some fifty batches, shuffle these; Transformers: "
    'group_by_length=True, from 5 on train_sampling_strategy="group_by_length"), or pack sequences end to end.',
    patch="order = sorted(window, key=lambda sample: len(sample.tokens))  # a window of some fifty batches",
    risk="The order of samples changes; packing needs attention that keeps to each sequence.",
)


def in_trace(case: Case) -> Iterator[Replayed]:
    """By the batches that were looked at, and the operators whose shapes hold them."""
    seen = case.facts.padding
    if seen is None:
        return
    real, needed, positions = (np.array(amounts, np.float64) for amounts in (seen.real, seen.needed, seen.positions))
    fixed, bucketed = needed / positions, (real + _LEFT_IN_BUCKETS * (needed - real)) / positions
    padded = float(1 - real[0] / positions[0])
    to_the_longest = 1 - fixed[0] >= _LEAST_BEYOND
    # A request's length is not chosen: only a loader can put samples of like length together.
    if not to_the_longest and (padded < _LEAST_UNEQUAL or not seen.loaded):
        return
    for rank in case.ranks:
        powers = _powers(rank, seen)
        if not powers.any():
            continue
        nodes = case.work_of(rank, powers > 0)
        per_step = case.time_of(nodes)
        expected, most = (_kept(case, rank, powers, keep) for keep in (fixed if to_the_longest else bucketed, bucketed))
        left_ns = (case.replayed.duration * expected)[case.in_window(nodes)].sum() / max(case.steps, 1)
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step - int(left_ns),
            evidence=(
                evidence.share("places of a batch that are padding", padded),
                evidence.share("places beyond the longest row of their batch", 1 - fixed[0]),
                evidence.count("batches that were looked at", seen.batches),
                evidence.time("work on batches of that size", per_step, case.events_of(nodes), per=case.per),
            ),
            removal=case.without(nodes, expected),
            ceiling=case.without(nodes, most),
            method="replay: operators on such batches in proportion to the places that are left",
            code=made_at([seen.made_at] if seen.made_at is not None else [], code_of(case, nodes)),
            ranks=(rank.rank,),
            uncertainty=0.3,
            confidence=0.9,
            detail=f"{padded:.0%} of all places" + (", which are padded to a fixed length" if to_the_longest else ""),
            remedy=_TO_THE_LONGEST if to_the_longest else _BUCKETS,
        )


def _powers(rank: RankCase, seen: PaddedBatches) -> NDArray[np.int64]:
    """The power of a batch's length with which each operator's work grows (in attention 2); 0 without such a batch.

    An optimizer's tensors are the model's, in any size.
    """
    table = rank.trace.operators
    if table.is_empty():
        return np.zeros(0, np.int64)
    sizes = sorted({*seen.sizes, *_embedded(rank, {rows for rows, _ in seen.sizes})})
    known = judged(table.select("input_dims"), lambda text: _power(text, sizes))
    out = np.array(known, np.int64)
    out[(out > 0) & matching(table["name"], _ATTENTION.search)] = 2
    begin, end, _ = rank.optimizer_steps
    out[within(table["ts_ns"].to_numpy(), begin, end)] = 0
    return out


def _embedded(rank: RankCase, rows: set[int]) -> list[tuple[int, int]]:
    """The sizes of recorded batches of tokens with the rows of an examined batch."""
    table = rank.trace.operators
    lookups = table.filter(pl.Series(matching(table["name"], lambda name: name == "aten::embedding")))
    dims = [parse_json(text or "[]") for text in lookups["input_dims"].cast(pl.String).unique().to_list()]
    tokens = [each[1] for each in dims if len(each) > 1 and len(each[1]) == 2]
    return [(first, places) for first, places in tokens if first in rows and isinstance(places, int)]


def _power(recorded: str | None, sizes: list[tuple[int, int]]) -> int:
    try:
        tensors = parse_json(recorded or "[]")
    except ValueError:
        return 0
    found = [_of_batch(tensor, rows, places) for tensor in tensors for rows, places in sizes]
    return max(found, default=0)


def _of_batch(tensor: Any, rows: int, places: int) -> int:
    """1 for a tensor of rows and places (in one dimension or two), 2 for one of places by places, 0 for others."""
    if not isinstance(tensor, list) or not all(isinstance(size, int) and size > 0 for size in tensor):
        return 0
    if rows * places in tensor:
        return 1
    others = [size for size in tensor if size != places]
    alone = len(tensor) == 2  # a matrix of the model's may have such sides as well
    if len(others) == len(tensor) or not any(size == rows if alone else size % rows == 0 for size in others):
        return 0
    return min(len(tensor) - len(others), 2)


def _kept(case: Case, rank: RankCase, powers: NDArray[np.int64], keep: NDArray[np.float64]) -> NDArray[np.float64]:
    """Remaining share of each node, ``keep`` by powers; a call's own cost stays."""
    kept = case.operator_values(rank, np.append(1.0, keep)[powers], 1.0)
    least = (_LAUNCH_NS if rank.on_device else _CALL_NS) / np.maximum(case.replayed.duration, 1)
    return np.where(kept < 1, np.maximum(kept, np.minimum(least, 1.0)), 1.0)


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "operators", "shapes", "samples")),))
