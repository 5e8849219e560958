"""Conversions of tensors to double precision, and back."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
import polars as pl

from whystall.diagnosis.rank_case import RankCase
from whystall.json_text import parse_json
from whystall.replay.graph import Mask
from whystall.trace.columns import judged, matching

LOWER: Final = frozenset({"float", "c10::Half", "c10::BFloat16"})
"""Names of lower precisions in recordings."""
_DOUBLE: Final = "double"


def casts_of_doubles(rank: RankCase) -> Mask:
    """Copies of lower precision into double, and of doubles into lower precision."""
    table = rank.trace.operators
    copies = np.flatnonzero(matching(table["name"], lambda name: name == "aten::copy_"))
    out = np.zeros(len(table), np.bool_)
    out[copies] = judged(table.select("input_types")[copies], _is_cast)
    return out


def is_between_casts(rank: RankCase) -> bool:
    """Whether each step converts tensors of lower precision to double, and doubles back to it.

    A model in double precision converts its input at most.
    """
    table = rank.trace.operators
    copies = table.filter(pl.Series(matching(table["name"], lambda name: name == "aten::copy_")))
    into, back = 0, 0
    for recorded, count in Counter(copies["input_types"].cast(pl.String).drop_nulls()).items():
        target, source = _types(recorded)
        into += count * (target == _DOUBLE and source in LOWER)
        back += count * (source == _DOUBLE and target in LOWER)
    return min(into, back) >= max(len(rank.trace.steps), 1)


def _is_cast(recorded: str | None) -> bool:
    target, source = _types(recorded)
    return (target == _DOUBLE and source in LOWER) or (source == _DOUBLE and target in LOWER)


def _types(recorded: str | None) -> tuple[str, str]:
    """The types of the two tensors of a copy: of the one that is written, and of the one that is read."""
    try:
        kinds = parse_json(recorded or "[]")
    except ValueError:
        return "", ""
    found = [str(one) for one in kinds[:2]] if isinstance(kinds, list) else []
    return (found[0], found[1]) if len(found) > 1 else ("", "")
