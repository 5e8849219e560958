"""The snapshots of a job's ranks together: the first that ran out of memory, and the excess of the fullest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from whystall.memory.results import DeviceMemory, FirstOut, MemoryReport, RanksTogether, SiteExcess

__all__ = ["together"]

_MOST_SITES: Final = 10
_HOST: Final = "pinned host memory"

Site = tuple[str | None, str | None]


def together(reports: Sequence[MemoryReport]) -> RanksTogether | None:
    """Results of several ranks' snapshots side by side; `None` unless at least two hold a device."""
    ranks = [(report.file, device) for report in reports if (device := _fullest(report)) is not None]
    if len(ranks) < 2:
        return None
    first, why_none = _first_out(ranks)
    at = max(range(len(ranks)), key=lambda number: ranks[number][1].peak.allocated_bytes)
    file, fullest = ranks[at]
    others = [device for number, (_, device) in enumerate(ranks) if number != at]
    return RanksTogether(
        files=len(ranks),
        ran_out=sum(bool(device.out_of_memory) for _, device in ranks),
        first_out=first,
        no_first_because=why_none,
        fullest=file,
        fullest_peak_bytes=fullest.peak.allocated_bytes,
        median_of_others_bytes=int(median(device.peak.allocated_bytes for device in others)),
        more=tuple(sorted(_excesses(fullest, others), key=lambda one: one.median_of_others_bytes - one.bytes))[
            :_MOST_SITES
        ],
    )


def _fullest(report: MemoryReport) -> DeviceMemory | None:
    """The device of a file that ran out, else the one that held most."""
    devices = (device for device in report.devices if device.device != _HOST)
    return max(devices, key=lambda device: (bool(device.out_of_memory), device.peak.allocated_bytes), default=None)


def _first_out(ranks: Sequence[tuple[str, DeviceMemory]]) -> tuple[FirstOut | None, str | None]:
    """The rank that ran out first by the clocks of the ranks' hosts, or the reason why it is unknown."""
    outs = [(device.out_of_memory[0], file) for file, device in ranks if device.out_of_memory]
    if not outs:
        return None, "none ran out of memory"
    timed = [(one.unix_ns, one.asked_bytes, file) for one, file in outs if one.unix_ns is not None]
    if len(timed) < len(outs) and len(outs) > 1:
        return None, "not all that ran out have times"
    if not timed:
        return FirstOut(outs[0][1], outs[0][0].asked_bytes, None, None), None
    (at_ns, asked, file), *later = sorted(timed)
    return FirstOut(file, asked, later[0][2] if later else None, later[0][0] - at_ns if later else None), None


def _excesses(fullest: DeviceMemory, others: Sequence[DeviceMemory]) -> Iterator[SiteExcess]:
    """Lines with more memory on the fullest rank than in the median of the others, by at least this amount.

    The category does not count: where memory ran out, nothing was yet seen to reach the backward pass.
    """
    held = [(_by_site(other), _unlisted(other)) for other in others]
    for (site, function), bytes_ in _by_site(fullest).items():
        usual = int(median(sites.get((site, function), 0) + unlisted for sites, unlisted in held))
        if bytes_ > usual:
            yield SiteExcess(site, function, bytes_, usual)


def _by_site(device: DeviceMemory) -> dict[Site, int]:
    out: dict[Site, int] = {}
    for holder in device.peak.holders:
        key = (holder.site, holder.function)
        out[key] = out.get(key, 0) + holder.bytes
    return out


def _unlisted(device: DeviceMemory) -> int:
    """Memory of the lines left out; each may belong to any line."""
    return device.peak.allocated_bytes - sum(holder.bytes for holder in device.peak.holders)
