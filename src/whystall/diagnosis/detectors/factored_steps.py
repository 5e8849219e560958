"""Matrices that an optimizer factors in each of its steps: the roots and inverses of second-order methods.

Their preconditioner changes slowly: Shampoo, SOAP and K-FAC renew it every ten to a hundred steps.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from whystall.analysis.intervals import within
from whystall.diagnosis import evidence
from whystall.diagnosis.detectors.wasted import Wasted
from whystall.diagnosis.rank_case import RankCase
from whystall.trace.columns import judged, matching
from whystall.trace.recorded_sizes import first_size

_FACTORS: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("_linalg_eigh", "_linalg_svd", "linalg_eig", "linalg_inv_ex", "linalg_cholesky_ex", "linalg_lu_factor_ex"),
        *("linalg_qr", "linalg_matrix_exp", "cholesky_inverse", "_linalg_solve_ex", "linalg_eigvalsh"),
    )
)
_LEAST_ROWS: Final = 8
# Factoring in every tenth step leaves a tenth; in every third, which is never needed, a third.
_LEFT: Final = (0.01, 0.1, 0.34)
# With fewer steps the frequency is unknown.
_FEWEST: Final = 3


def factored_steps(rank: RankCase) -> Wasted | None:
    """Such calls; ``None`` where there are none, or not in every step of the optimizer's."""
    begin, end, _ = rank.optimizer_steps
    table = rank.trace.operators
    if len(begin) < _FEWEST or table["input_dims"].null_count() == len(table):
        return None
    at = table["ts_ns"].to_numpy()
    found = matching(table["name"], _FACTORS.__contains__) & within(at, begin, end)
    rows = np.flatnonzero(found)
    if not len(rows):
        return None
    sizes = [one[-1] if len(one) > 1 else 0 for one in judged(table.select("input_dims")[rows], first_size)]
    found[rows[np.array(sizes) < _LEAST_ROWS]] = False
    order = np.sort(begin)
    steps = np.unique(np.searchsorted(order, at[found], side="right"))
    if len(steps) < len(begin):
        return None
    each = np.count_nonzero(found) / len(begin)
    return Wasted(
        operators=found | rank.workings.tree.below(found),
        left=_LEFT,
        what="factoring",
        facts=(
            evidence.count("matrices that each of the optimizer's steps factors", each),
            evidence.count("rows of the largest", max(sizes)),
        ),
        method="replay: a tenth of it",
        detail=f"each of the optimizer's steps factors {each:,.0f} matrices anew",
        remedy="renewed_seldom",
    )
