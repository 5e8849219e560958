"""16-bit convolutions that a library computes without tensor cores, between conversions of their tensors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.trace.columns import matching
from whystall.trace.link import rows_of

CONVOLUTION: Final = re.compile(r"^aten::((cudnn|miopen)_convolution|_?convolution(_backward)?$)")
"""Operators that a library computes: cuDNN or MIOpen, called by torch."""


@dataclass(frozen=True, slots=True)
class Converted:
    """Device events of such calls: those that convert tensors, and those that compute."""

    converts: Mask
    computes: Mask

    @property
    def events(self) -> Mask:
        """Both."""
        both: Mask = self.converts | self.computes
        return both


def converted_convolutions(rank: RankCase) -> Converted:
    """The events of convolution operators that launched a conversion, and 16-bit arithmetic off tensor cores."""
    work = rank.workings
    names = rank.trace.operators["name"]
    convolution = matching(names, lambda name: bool(CONVOLUTION.match(name))) if len(names) else np.zeros(0, np.bool_)
    operator = rows_of(rank.trace.device_events["operator"])
    own = np.append(convolution, values=False)[operator]
    half = work.is_half
    computes = own & half & work.could_use_tensor_cores & ~work.uses_tensor_cores
    converts = own & work.classified.has("layout")
    calls = np.intersect1d(operator[computes], operator[converts])
    both = np.isin(operator, calls)
    return Converted(converts & both, computes & both)
