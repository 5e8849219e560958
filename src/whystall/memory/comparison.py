"""Two snapshots beside each other: the memory of each line at the peak of either."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from whystall.memory.results import Category, DeviceMemory, Holder, MemoryReport, SiteChange, SnapshotComparison

__all__ = ["compare_snapshots"]

_MOST_CHANGES: Final = 100

Key = tuple[Category, str | None, str | None]


def compare_snapshots(before: MemoryReport, after: MemoryReport) -> tuple[SnapshotComparison, ...]:
    """One comparison for each device that both know; a line that moved within its function is the same."""
    others = {device.device: device for device in after.devices}
    pairs = ((device, others[device.device]) for device in before.devices if device.device in others)
    return tuple(_compared(before.file, after.file, one, other) for one, other in pairs)


def _compared(before: str, after: str, one: DeviceMemory, other: DeviceMemory) -> SnapshotComparison:
    old, new = _by_site(one.peak.holders), _by_site(other.peak.holders)
    changes = sorted(_changes(old, new), key=lambda change: -abs(change.after_bytes - change.before_bytes))
    changed = [change for change in changes if change.after_bytes != change.before_bytes]
    return SnapshotComparison(
        device=one.device,
        before=before,
        after=after,
        before_peak_bytes=one.peak.allocated_bytes,
        after_peak_bytes=other.peak.allocated_bytes,
        changes=tuple(changed[:_MOST_CHANGES]),
        changes_left_out=max(len(changed) - _MOST_CHANGES, 0),
        unchanged_bytes=sum(change.after_bytes for change in changes if change.after_bytes == change.before_bytes),
    )


def _by_site(holders: tuple[Holder, ...]) -> dict[Key, int]:
    out: dict[Key, int] = {}
    for holder in holders:
        key = (holder.category, holder.site, holder.function)
        out[key] = out.get(key, 0) + holder.bytes
    return out


def _changes(old: dict[Key, int], new: dict[Key, int]) -> Iterator[SiteChange]:
    """Every line of either; the only one of a function that went is matched with the only one of it that came."""
    gone, came = _alone(old, new), _alone(new, old)
    moved = {came[name]: key for name, key in gone.items() if name in came and key[1] is not None}
    for key, bytes_ in new.items():
        yield SiteChange(key[0], key[1], key[2], old.get(moved.get(key, key), 0), bytes_)
    for key, bytes_ in old.items():
        if key not in new and key not in moved.values():
            yield SiteChange(key[0], key[1], key[2], bytes_, 0)


def _alone(some: dict[Key, int], others: dict[Key, int]) -> dict[Key, Key]:
    """The lines that ``others`` lacks, by function: only those whose function has no other such line."""
    found = [key for key in some if key not in others]
    times = Counter(map(_without_line, found))
    return {_without_line(key): key for key in found if times[_without_line(key)] == 1}


def _without_line(key: Key) -> Key:
    category, site, function = key
    return category, None if site is None else site.rpartition(":")[0] or site, function
