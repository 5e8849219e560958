"""Whether TF32 was allowed for convolutions, as ``aten::_convolution`` records it beside its shapes."""

from __future__ import annotations

from typing import Final

import numpy as np

from whystall.diagnosis.rank_case import RankCase
from whystall.json_text import parse_json
from whystall.trace.columns import judged, matching

# aten::_convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, benchmark,
# deterministic, cudnn_enabled, allow_tf32); older versions lack the last argument.
_ARGUMENTS: Final = 13


def allow_tf32(rank: RankCase) -> bool | None:
    """Whether TF32 was allowed in most calls; ``None`` where no call has its arguments recorded."""
    table = rank.trace.operators
    if "concrete_inputs" not in table.columns:
        return None
    rows = np.flatnonzero(matching(table["name"], "aten::_convolution".__eq__))
    said = judged(table.select("concrete_inputs")[rows], _last_of_all)
    on, off = said.count("True"), said.count("False")
    return on > off if on or off else None


def _last_of_all(text: str | None) -> str | None:
    try:
        values = parse_json(text or "")
    except ValueError:
        return None
    return values[-1] if isinstance(values, list) and len(values) == _ARGUMENTS else None
