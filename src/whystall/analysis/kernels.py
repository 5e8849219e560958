"""Kernels by name and by family."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.kernel_classes import CLASSES, Classified
from whystall.analysis.results import Kernel, KernelFamily
from whystall.analysis.work import WorkSums
from whystall.trace.model import Trace


def kernel_results(trace: Trace, classified: Classified, rank: int, work: WorkSums | None = None) -> list[Kernel]:
    """One row per name, the largest total first; ``work`` is that of each name in ``classified.names``."""
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
                **_work_of(work, int(classified.name_of[first])),
            )
        )
    return sorted(out, key=lambda row: (-row.total_ns, row.name))


def family_key(classified: Classified) -> NDArray[np.int64]:
    """Per device event the number of its class and family."""
    return classified.class_of.astype(np.int64) * len(classified.families) + classified.family_of


def family_results(
    trace: Trace,
    classified: Classified,
    rank: int,
    work: WorkSums | None = None,
    tensor_cores: tuple[NDArray[np.bool_], NDArray[np.bool_]] | None = None,
) -> list[KernelFamily]:
    """One row per class and family, the largest total first; the family of unknown names is ``None``.

    ``work`` is that of each number from `family_key`; ``tensor_cores`` are, per event, whether its kernel could use
    them and whether it does.
    """
    duration = trace.device_events["duration_ns"].to_numpy()
    whole = max(int(duration.sum()), 1)
    key = family_key(classified)
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
                **_work_of(work, int(key[rows[0]])),
                tensor_core_share=_tensor_core_share(duration[rows], rows, tensor_cores),
            )
        )
    return sorted(out, key=lambda row: (-row.total_ns, row.class_, row.family or ""))


def _tensor_core_share(
    duration: NDArray[np.int64],
    rows: NDArray[np.intp],
    tensor_cores: tuple[NDArray[np.bool_], NDArray[np.bool_]] | None,
) -> float | None:
    if tensor_cores is None:
        return None
    could, uses = (flags[rows] for flags in tensor_cores)
    whole = int(duration[could].sum())
    return int(duration[could & uses].sum()) / whole if whole else None


def _work_of(work: WorkSums | None, group: int) -> dict[str, Any]:
    """The fields of a row on its work; empty where no operator has a cost."""
    return {} if work is None else asdict(work.part(group))


def _groups(key: NDArray[np.int64]) -> list[NDArray[np.intp]]:
    """The rows of each distinct key."""
    if not len(key):
        return []
    order = np.argsort(key, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(key[order])) + 1)
