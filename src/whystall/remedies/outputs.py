"""Compares what a program prints, where it has no losses: words that two runs of the same program share must stay."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

from whystall.verify.tune.results import Losses

_WORD: Final = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[^\W\d_]+")


def compare_outputs(before: Sequence[str], after: str, tolerance: float) -> Losses:
    """Whether a changed program prints the same as two runs of the program before it.

    Words that differ between these two (times, names of files) do not count. Numbers may differ by ``tolerance``.

    >>> compare_outputs(["accuracy 0.91 in 3.2 s", "accuracy 0.91 in 3.4 s"], "accuracy 0.91 in 1.1 s", 0.01)
    'agree'
    >>> compare_outputs(["accuracy 0.91 in 3.2 s", "accuracy 0.91 in 3.4 s"], "accuracy 0.55 in 1.1 s", 0.01)
    'differ'
    """
    first, second, changed = (_WORD.findall(text) for text in (*before, after))
    if not len(first) == len(second) == len(changed):
        return "not compared"
    stable = [(old, new) for old, same, new in zip(first, second, changed, strict=True) if old == same]
    if not any(_number(old) is not None for old, _ in stable):
        return "not compared"
    return "agree" if all(_alike(old, new, tolerance) for old, new in stable) else "differ"


def _alike(old: str, new: str, tolerance: float) -> bool:
    first, second = _number(old), _number(new)
    if first is None or second is None:
        return old == new
    return math.isclose(first, second, rel_tol=tolerance, abs_tol=1e-9)


def _number(word: str) -> float | None:
    try:
        return float(word) if word[0] in "+-.0123456789" else None
    except ValueError:
        return None
