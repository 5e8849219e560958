"""Kernels by name and by family."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.classify import CLASSES, Classified
from whystall.analysis.results import Kernel, KernelFamily
from whystall.trace.model import Trace


def kernel_results(trace: Trace, classified: Classified, rank: int) -> list[Kernel]:
    """One row per name, the largest total first."""
    duration = trace.device_events["duration_ns"].to_numpy()
    whole = max(int(duration.sum()), 1)
    out = []
    for rows in _groups(classified.name_of):
        times = duration[rows]
        first = rows[0]
        out.append(
            Kernel(
                rank=rank,
                name=classified.names[classified.name_of[first]],
                class_=CLASSES[classified.class_of[first]],
                family=classified.families[classified.family_of[first]],
                count=len(rows),
                total_ns=int(times.sum()),
                mean_ns=round(int(times.sum()) / len(rows)),
                min_ns=int(times.min()),
                max_ns=int(times.max()),
                share=int(times.sum()) / whole,
            )
        )
    return sorted(out, key=lambda row: (-row.total_ns, row.name))


def family_results(trace: Trace, classified: Classified, rank: int) -> list[KernelFamily]:
    """One row per class and family, the largest total first; the family of unknown names is ``None``."""
    duration = trace.device_events["duration_ns"].to_numpy()
    whole = max(int(duration.sum()), 1)
    key = classified.class_of.astype(np.int64) * len(classified.families) + classified.family_of
    out = []
    for rows in _groups(key):
        total = int(duration[rows].sum())
        out.append(
            KernelFamily(
                rank=rank,
                class_=CLASSES[classified.class_of[rows[0]]],
                family=classified.families[classified.family_of[rows[0]]],
                count=len(rows),
                total_ns=total,
                share=total / whole,
            )
        )
    return sorted(out, key=lambda row: (-row.total_ns, row.class_, row.family or ""))


def _groups(key: NDArray[np.int64]) -> list[NDArray[np.intp]]:
    """The rows of each distinct key."""
    if not len(key):
        return []
    order = np.argsort(key, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(key[order])) + 1)
