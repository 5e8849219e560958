"""Cheaper equal forms of operators: each matches values of a recording and prices what would be left."""

from __future__ import annotations

from typing import Final

from whystall.diagnosis.rewrites.copies import BROADCAST, GROUPED
from whystall.diagnosis.rewrites.factors import INVERSE
from whystall.diagnosis.rewrites.products import GRAMS, MIXED_FIRST, PRODUCT_ORDER
from whystall.diagnosis.rewrites.rows import AVERAGED, BAGGED, PICKED, SIDE_BY_SIDE, UPSAMPLED

REWRITES: Final = (
    *(GRAMS, PRODUCT_ORDER, MIXED_FIRST),
    *(PICKED, SIDE_BY_SIDE, UPSAMPLED, AVERAGED, BAGGED),
    *(BROADCAST, GROUPED, INVERSE),
)
