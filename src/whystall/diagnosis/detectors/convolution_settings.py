"""The settings with which convolutions were called, as ``aten::_convolution`` records them beside its shapes."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np

from whystall.diagnosis.rank_case import RankCase
from whystall.json_text import parse_json
from whystall.trace.columns import judged, matching

# aten::_convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, benchmark,
# deterministic, cudnn_enabled, allow_tf32)
_PLACES: Final = {"benchmark": 9, "allow_tf32": 12}
_ARGUMENTS: Final = 13

Setting = Literal["benchmark", "allow_tf32"]


def convolution_setting(rank: RankCase, name: Setting) -> bool | None:
    """Whether a setting was on in most calls; ``None`` where no call has its arguments recorded."""
    table = rank.trace.operators
    if "concrete_inputs" not in table.columns:
        return None
    rows = np.flatnonzero(matching(table["name"], "aten::_convolution".__eq__))
    said = judged(table.select("concrete_inputs")[rows], lambda text: _argument(text, _PLACES[name]))
    on, off = said.count("True"), said.count("False")
    return on > off if on or off else None


def _argument(text: str | None, place: int) -> str | None:
    try:
        values = parse_json(text or "")
    except ValueError:
        return None
    return values[place] if isinstance(values, list) and len(values) == _ARGUMENTS else None
