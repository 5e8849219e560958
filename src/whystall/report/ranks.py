"""A report cut into ranks, so that each rank's section is made from its own rows alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from whystall.analysis.counters import DeviceCounter
from whystall.analysis.memory_results import MemoryPeak
from whystall.analysis.results import (
    Collective,
    Device,
    HostCall,
    HostThread,
    InputWait,
    Kernel,
    KernelFamily,
    Module,
    Operator,
    Phase,
    Timeline,
)
from whystall.analysis.work_results import DeviceEfficiency, KernelChains, KernelOrigins
from whystall.report.names import clean
from whystall.report.schema import Report


class _Ranked(Protocol):
    @property
    def rank(self) -> int: ...


Row = TypeVar("Row", bound=_Ranked)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReport:
    """A report's part on one device: its activity, its share of the peak, its representative step."""

    device: Device
    rating: DeviceEfficiency | None
    timeline: Timeline | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """A report's part on one rank."""

    rank: int
    devices: Sequence[Device]
    kernels: Sequence[Kernel]
    families: Sequence[KernelFamily]
    operators: Sequence[Operator]
    modules: Sequence[Module]
    phases: Sequence[Phase]
    communication: Sequence[Collective]
    input: Sequence[InputWait]
    threads: Sequence[HostThread]
    calls: Sequence[HostCall]
    memory: Sequence[MemoryPeak]
    counters: Sequence[DeviceCounter]
    timelines: Sequence[Timeline]
    ratings: Sequence[DeviceEfficiency]
    chains: Sequence[KernelChains]
    origins: Sequence[KernelOrigins]
    in_depth: bool
    """Whether more is known of it than a summary."""

    @property
    def on_cpu(self) -> bool:
        """Whether the rank ran without an accelerator."""
        return all(device.kind == "cpu" for device in self.devices)

    def of_device(self, device: Device) -> DeviceReport:
        """The part on one of its devices."""
        number = device.device
        return DeviceReport(
            device=device,
            rating=next((rating for rating in self.ratings if rating.device == number), None),
            timeline=next((timeline for timeline in self.timelines if timeline.device == number), None),
        )


def _grouped(rows: Iterable[Row]) -> dict[int, list[Row]]:
    groups: defaultdict[int, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.rank].append(row)
    return dict(groups)


def only_summarised(report: Report) -> set[int]:
    """The ranks that were not looked at in depth, as of many most are not."""
    return {file.rank for file in report.source.files if not file.in_depth}


def by_rank(report: Report) -> tuple[RankReport, ...]:
    """The report's ranks in order, each with its own rows."""
    devices, kernels, families = _grouped(report.devices), _grouped(report.kernels), _grouped(report.kernel_families)
    operators, modules, phases = _grouped(report.operators), _grouped(report.modules), _grouped(report.phases)
    communication, waits, memory = _grouped(report.communication), _grouped(report.input), _grouped(report.memory)
    threads, calls = _grouped(report.host.threads), _grouped(report.host.calls)
    timelines, ratings = _grouped(report.timelines), _grouped(report.efficiency.devices)
    chains, origins = _grouped(report.kernel_chains), _grouped(report.kernel_origins)
    counters = _grouped(report.device_counters)
    tables = (devices, kernels, operators, modules, phases, communication, waits, memory, threads, calls)
    summarised = only_summarised(report)
    return tuple(
        RankReport(
            rank=rank,
            devices=devices.get(rank, ()),
            kernels=kernels.get(rank, ()),
            families=families.get(rank, ()),
            operators=operators.get(rank, ()),
            modules=modules.get(rank, ()),
            phases=phases.get(rank, ()),
            communication=communication.get(rank, ()),
            input=waits.get(rank, ()),
            threads=threads.get(rank, ()),
            calls=calls.get(rank, ()),
            memory=memory.get(rank, ()),
            counters=counters.get(rank, ()),
            timelines=timelines.get(rank, ()),
            ratings=ratings.get(rank, ()),
            chains=chains.get(rank, ()),
            origins=origins.get(rank, ()),
            in_depth=rank not in summarised,
        )
        for rank in sorted(set().union(*tables))
    )


def device_name(device: Device) -> str:
    """Label of a device: its kind, number and model."""
    kind = {"gpu": f"GPU {device.device}", "accelerator": f"Accelerator {device.device}", "cpu": "CPU"}[device.kind]
    return f"{kind} · {clean(device.name, 80)}" if device.name else kind


def device_title(device: Device) -> str:
    """A device's name with its rank in front."""
    return f"Rank {device.rank} · {device_name(device)}"
