"""The rate at which a recording's own kernels read and write the device's memory."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.kernel_classes import Classified
from whystall.trace.columns import codes, matching
from whystall.trace.link import rows_of
from whystall.trace.model import Trace

# From here on a cache does not hold all that a kernel reads and writes (L2 of 40 MB on A100, of 6 MB on V100).
_LARGE_BYTES: Final = 16e6
_POINTWISE: Final = frozenset({"elementwise", "activation"})
_VECTORIZED: Final = "vectorized"
"""torch's kernels for operands that lie in memory in the same order; others read them here and there."""
_LEAST_KERNELS: Final = 8
_LEAST_KINDS: Final = 2
_NEARLY_BEST: Final = 0.9

FAR_BELOW: Final = 0.25
"""Share of the rated bandwidth below which a device's memory is slowed down.

In the recordings of V100, A100, H100 and MI300X that hold such kernels the best of them reach at least 74 % of it.
"""


def pointwise_bytes_per_s(trace: Trace, classified: Classified, moved: NDArray[np.float64]) -> float | None:
    """The rate that the fastest kind of large pointwise kernel reaches in one of ten of its calls, in bytes a second.

    Such kernels only read and write memory, in order. ``None`` with fewer than eight of them, or of one operator alone.
    """
    took = trace.device_events["duration_ns"].to_numpy()
    operator = rows_of(trace.device_events["operator"])
    in_order = matching(trace.device_events["name"], lambda name: _VECTORIZED in name.lower())
    pointwise = np.array([family in _POINTWISE for family in classified.families], np.bool_)[classified.family_of]
    large = in_order & pointwise & (moved >= _LARGE_BYTES) & (took > 0) & (operator >= 0)
    if np.count_nonzero(large) < _LEAST_KERNELS:
        return None
    kind: NDArray[Any] = codes(trace.operators["name"])[operator[large]]
    rate = moved[large] / took[large] * 1e9
    kinds = np.unique(kind)
    if len(kinds) < _LEAST_KINDS:
        return None
    return max(float(np.quantile(rate[kind == one], _NEARLY_BEST)) for one in kinds)
