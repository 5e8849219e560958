"""The memory of a whole run from its samples: steady rises, and the counters of torch's allocator.

A profiler keeps its records in the memory of the job, and frees them late or never: a rise while it runs is no evidence
about the job. So three stretches of steps without it are examined: the longest, the latest, and all of them joined. For
each, its later parts are examined too, since a rise may begin while the job runs. The largest rise is reported.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.run_results import AllocatorRun, MemoryRise
from whystall.run_folder.samples import DISTURBED, PROFILED
from whystall.trace.samples import RunSamples

_QUARTERS: Final = 4
# After a window, or after the start, memory settles within this many steps.
_SETTLING_STEPS: Final = 5
_FEWEST_LOOKS: Final = 20
# Steps become longer where the last quarter's take this many times as long as the first quarter's.
_LONGER: Final = 1.1
# All of a stretch, and its last halves, thirds and so on.
_ENDS: Final = (1, 1.5, 2, 3, 4, 6, 8)
# Weight of a part of a rise with which steps became longer.
_SAYS_MORE: Final = 4
# Minimum share of its part of the total growth that each of three quarters must contribute.
_LEAST_OF_ITS_PART: Final = 0.3


def memory_rises(samples: RunSamples) -> list[MemoryRise]:
    """The memory of the host (the used part of its heap, else its resident memory) and of each device."""
    steps = samples.steps
    profiled = (steps["flags"] & PROFILED).fill_null(0).to_numpy() != 0
    lasts = np.maximum(steps["duration_us"].fill_null(1).to_numpy(), 1)
    (begin, end), *ends = _stretches(profiled, np.cumsum(lasts)) or [(0, 0)]
    found = [_rises(samples, steps[:begin], steps[begin:end], all_of_it=True)]
    found += [_rises(samples, steps[:first], steps[first:last], all_of_it=False) for first, last in ends]
    joined = _joined(steps, profiled)
    for first in _ends(np.cumsum(np.maximum(joined["duration_us"].fill_null(1).to_numpy(), 1))):
        found.append(_rises(samples, joined[:first], joined[first:], all_of_it=False))
    return max(found, key=_weight)


def _weight(rises: list[MemoryRise]) -> int:
    """The size of the largest rise: a late one is small over the whole of a stretch."""
    return max((rise.rise_bytes * (1 if rise.first_step_ns is None else _SAYS_MORE) for rise in rises), default=0)


def _rises(samples: RunSamples, before: pl.DataFrame, stretch: pl.DataFrame, *, all_of_it: bool) -> list[MemoryRise]:
    """The same within a stretch of steps, and those before it."""
    found = [_of_the_host(stretch, resident=all_of_it)]
    if len(stretch):
        looks = samples.allocators.filter(pl.col("step").is_between(stretch["step"][0], stretch["step"][-1]))
        for device in looks["device"].unique(maintain_order=True).to_list():
            each = looks.filter(pl.col("device") == device)
            # These come at any moment of a step: the least of several stays between steps.
            found.append(_rise(device, each["step"].to_numpy(), each["allocated"].to_numpy(), 0.0))
    times = _longer_steps(before, stretch)
    return [msgspec.structs.replace(rise, **times) for rise in found if rise is not None]


def _longer_steps(before: pl.DataFrame, stretch: pl.DataFrame) -> dict[str, int]:
    """The mean of some steps that become longer in each quarter, and the median of the first ones.

    These are their first quarter, or the steps before them where those were shorter still: a stretch may begin when
    memory has been rising for a while.
    """
    earlier, step = (_worked_ns(one) for one in (before, stretch))
    if len(step) < _FEWEST_LOOKS:
        return {}
    levels = [float(np.median(part)) for part in np.array_split(step, _QUARTERS)]
    if not _rise_evenly(levels) or levels[-1] < _LONGER * levels[0]:
        return {}
    first = min(levels[0], float(np.median(earlier))) if len(earlier) >= _FEWEST_LOOKS else levels[0]
    return {"first_step_ns": round(first), "mean_step_ns": round(float(step.mean()))}


def _worked_ns(steps: pl.DataFrame) -> NDArray[np.int64]:
    """The lengths of steps that nothing of ours disturbed, without the collection of garbage."""
    known = steps.filter((pl.col("flags") & DISTURBED) == 0)
    collected = known["gc_us"].fill_null(0) if "gc_us" in known.columns else 0
    return ((known["duration_us"] - collected) * 1000).to_numpy()


def _rise_evenly(levels: list[float]) -> bool:
    """Whether memory rises in each quarter."""
    rises = np.diff(levels)
    return bool(rises.min() > 0 and rises.min() * len(rises) >= _LEAST_OF_ITS_PART * rises.sum())


def _of_the_host(stretch: pl.DataFrame, *, resident: bool) -> MemoryRise | None:
    """By the heap; resident memory varies with the heap's fragmentation, and counts only on request.

    Or where nothing else is known.
    """
    counts = resident or "heap_kib" not in stretch.columns or stretch["heap_kib"].is_null().all()
    for column in ("heap_kib", "rss_kib") if counts else ("heap_kib",):
        if column in stretch.columns:
            known = stretch.select("step", column).drop_nulls()
            series = known["step"].to_numpy(), known[column].to_numpy() * 1024
            rise = _rise(None, *series, 0.5)
            # Next to a heap that does not grow, resident memory must grow in smaller parts as well: code for new
            # shapes, and a fragmented heap, grow in leaps and stop.
            beside_heap = column == "rss_kib" and "heap_kib" in stretch.columns
            if beside_heap and not stretch["heap_kib"].is_null().all():
                rise = rise if _rise(None, *series, 0.5, parts=2 * _QUARTERS) is not None else None
            if rise is not None:
                return msgspec.structs.replace(rise, heap=column == "heap_kib")
    return None


def _stretches(profiled: NDArray[np.bool_], past: NDArray[np.int64]) -> list[tuple[int, int]]:
    """The longest run of rows without the profiler, from where memory has settled; the latest one, and ends of both.

    Ends are parts of the time (``past`` at the end of each row): where steps have become many times as long, the later
    ones are few among all steps.
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[True], profiled, [True]]).astype(np.int8)))
    begin, end = edges[::2], edges[1::2]
    if not len(begin):
        return []
    longest, latest = int(np.argmax(end - begin)), len(begin) - 1
    settled = {at: min(int(begin[at]) + _SETTLING_STEPS, int(end[at])) for at in (longest, latest)}
    found = [(settled[longest], int(end[longest]))]
    for at in dict.fromkeys((latest, longest)):
        found += [(settled[at] + first, int(end[at])) for first in _ends(past[settled[at] : int(end[at])])]
    return found


def _ends(past: NDArray[np.int64]) -> list[int]:
    """Where the ends of a stretch begin."""
    whole = past[-1] - past[0] if len(past) else 0
    return [int(np.searchsorted(past, past[-1] - whole / part)) for part in _ENDS if len(past)]


def _joined(steps: pl.DataFrame, profiled: NDArray[np.bool_]) -> pl.DataFrame:
    """The steps that were not recorded, where memory has settled; their heap without growth during recorded ones.

    A job that is recorded often has no long stretch. None where the heap is not known.
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[True], profiled, [True]]).astype(np.int8)))
    parts, between, last = [steps[:0]], 0, None
    for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        part = steps[min(begin + _SETTLING_STEPS, end) : end]
        heap = part["heap_kib"].drop_nulls() if "heap_kib" in part.columns else part["step"][:0]
        if len(heap):
            between += 0 if last is None else heap[0] - last
            last = heap[-1]
            parts.append(part.with_columns(pl.col("heap_kib") - between))
    return pl.concat(parts)


def _rise(
    device: int | None, step: NDArray[np.int64], value: NDArray[np.int64], quantile: float, parts: int = _QUARTERS
) -> MemoryRise | None:
    """The growth of a series from the first of its parts to the last, if it grows in each."""
    if len(value) < _FEWEST_LOOKS:
        return None
    odd = len(value) % parts  # of equal parts the rate is exact
    step, value = step[odd:], value[odd:]
    levels = [float(np.quantile(part, quantile)) for part in np.array_split(value, parts)]
    if not _rise_evenly(levels):
        return None
    centres = [float(part.mean()) for part in np.array_split(step, parts)]
    return MemoryRise(
        device=device,
        start_bytes=round(levels[0]),
        rise_bytes=round(levels[-1] - levels[0]),
        over_steps=max(round(centres[-1] - centres[0]), 1),
    )


def allocator_runs(samples: RunSamples) -> list[AllocatorRun]:
    """The peak of torch's allocator on each device, and how often it had to free memory to find some."""
    summed = samples.allocators.group_by("device", maintain_order=True).agg(
        pl.col("peak_allocated").max().alias("peak_allocated_bytes"),
        pl.col("reserved").max().alias("peak_reserved_bytes"),
        (pl.col("retries").max() - pl.col("retries").min()).alias("retries"),
        (pl.col("step").max() - pl.col("step").min()).alias("steps"),
    )
    return [AllocatorRun(**row) for row in summed.iter_rows(named=True)]
