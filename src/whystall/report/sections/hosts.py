"""Many ranks in one table: host by host where the recordings show hosts, else in blocks of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from whystall.analysis.results import Device
from whystall.fleet.spans import spans
from whystall.report import format as fmt
from whystall.report import tables
from whystall.report.schema import Report, SourceFile
from whystall.report.tables import Cell, Column, Limits, Table

# Up to this number ranks are shown one by one (`InTerminal.rows` of the devices).
_FEW_RANKS: Final = 16
_MOST_BLOCKS: Final = 32


@dataclass(frozen=True, slots=True)
class _Group:
    """Devices that stand in one row; ``host`` is the number of their host, if it is known."""

    host: int | None
    devices: Sequence[Device]

    def mean(self, values: Sequence[int]) -> float | None:
        return fmt.ratio(sum(values), sum(device.window_ns for device in self.devices))

    @property
    def slowest(self) -> Device:
        return max(self.devices, key=lambda device: (device.compute_ns, -device.rank, -device.device))


def hosts(report: Report, limits: Limits) -> Table:
    """The ledgers of many ranks, group by group, the one with the longest compute first; none for few ranks."""
    columns = (
        Column("Host", "text", note="Numbered by their ranks", priority=1), Column("Ranks", "text", priority=1),
        Column("Devices"), Column("Compute", note="Mean share of the window", priority=1),
        Column("Exposed comm.", note="Communication that compute does not hide, mean share of the window", priority=1),
        Column("Idle", note="Mean share of the window", priority=1),
        Column("Computes longest", "text", note="The rank of the group that does", priority=2),
        Column("For", note="Its compute in the whole recording", priority=2),
    )  # fmt: skip
    groups = _groups(sorted(report.devices, key=lambda device: (device.rank, device.device)), report.source.files)
    shown = tables.largest(groups, limits, lambda group: (group.slowest.compute_ns, f"{group.devices[0].rank:012}"))
    rows = (
        (
            Cell("") if group.host is None else tables.identifier(group.host),
            Cell(spans(device.rank for device in group.devices), group.devices[0].rank),
            tables.count(len(group.devices)),
            tables.share(group.mean([device.compute_ns for device in group.devices])),
            tables.share(group.mean([device.exposed_communication_ns for device in group.devices])),
            tables.share(group.mean([device.idle_ns for device in group.devices])),
            Cell(f"rank {group.slowest.rank}", group.slowest.rank),
            tables.duration(group.slowest.compute_ns),
        )
        for group in shown
    )
    caption = "All ranks, whether they were looked at in depth or not, those that compute longest first."
    return tables.table("hosts", "Ranks in groups", caption, columns, rows, total=len(groups))


def by_host(devices: Sequence[Device], files: Sequence[SourceFile] = ()) -> list[list[Device]]:
    """The devices (in order of rank) host by host: from their files, else from their numbers.

    On each host numbers count from the lowest; devices that all have the same number give no host.
    """
    host_of = {file.rank: file.host for file in files if file.host is not None}
    if devices and all(device.rank in host_of for device in devices):
        of_host: dict[int, list[Device]] = {}
        for device in devices:
            of_host.setdefault(host_of[device.rank], []).append(device)
        return list(of_host.values())
    found: list[list[Device]] = []
    for device in devices:
        last = found[-1][-1] if found else None
        if last is None or (device.device <= last.device and device.rank != last.rank):
            found.append([])
        found[-1].append(device)
    return found if len(found) < len(devices) else []


def _groups(devices: Sequence[Device], files: Sequence[SourceFile]) -> list[_Group]:
    """The devices of many ranks host by host, or in blocks."""
    if len({device.rank for device in devices}) <= _FEW_RANKS:
        return []
    if found := by_host(devices, files):
        return [_Group(number, own) for number, own in enumerate(found)]
    size = -(-len(devices) // _MOST_BLOCKS)
    return [_Group(None, devices[first : first + size]) for first in range(0, len(devices), size)]
