"""The summary of one rank that travels: enough to choose ranks for analysis, and to show all; never the trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from whystall.analysis.communication import communication_results
from whystall.analysis.results import Collective, Device, Step
from whystall.analysis.trace_analysis import TraceAnalysis
from whystall.analysis.work_results import DeviceEfficiency
from whystall.fleet.instances import Instances, packed_instances
from whystall.trace.metadata import Metadata
from whystall.trace.model import Quarantine, Trace
from whystall.trace.ranks import Facts, facts_of

MOST_STEPS: Final = 32
_MOST_ROWS: Final = 64
_MOST_UNCOVERED: Final = 8
_MOST_SENTENCES: Final = 16


class RankSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One recording in short. Times are nanoseconds as in reports; ``name`` in ``facts`` is the file's base name.

    ``place`` is its number among several recordings in the file. A bounded part of long lists is kept: `MOST_STEPS`
    steps from the middle of each device, its largest rows of communication.
    """

    facts: Facts
    place: int
    file_bytes: int
    raw_bytes: int
    events: int
    truncated: bool
    warnings: list[str]
    quarantined: list[Quarantine]
    framework: str | None
    may_be_pytorch: bool
    version: str | None
    world_size: int | None
    host: int | None
    signals: dict[str, bool]
    lacks: list[str]
    devices: list[Device]
    efficiency: list[DeviceEfficiency]
    communication: list[Collective]
    links: dict[int, float]
    instances: Instances


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rank with its summary."""

    rank: int
    summary: RankSummary

    @property
    def devices(self) -> Sequence[Device]:
        """Its devices that were seen doing anything."""
        return [device for device in self.summary.devices if device.window_ns > 0]


def summary_of(trace: Trace, analysis: TraceAnalysis, place: int = 0) -> RankSummary:
    """The summary of a trace that was analysed as rank 0: `renumbered` sets the real one later."""
    metadata: Metadata = trace.metadata
    return RankSummary(
        facts=facts_of(trace),
        place=place,
        file_bytes=trace.source.file_bytes,
        raw_bytes=trace.source.raw_bytes,
        events=trace.source.events,
        truncated=trace.source.truncated,
        warnings=list(trace.source.warnings[:_MOST_SENTENCES]),
        quarantined=list(trace.source.quarantined[:_MOST_SENTENCES]),
        framework=metadata.framework,
        may_be_pytorch=metadata.may_be_pytorch,
        version=metadata.versions.get("pytorch_version") or None,
        world_size=metadata.world_size,
        host=metadata.host,
        signals=analysis.signals,
        lacks=analysis.lacks[:_MOST_SENTENCES],
        devices=[msgspec.structs.replace(device, steps=_middle(device.steps)) for device in analysis.devices],
        efficiency=[
            msgspec.structs.replace(row, roofline=None, uncovered=row.uncovered[:_MOST_UNCOVERED])
            for row in analysis.efficiency
        ],
        communication=communication_results(analysis.collectives, analysis.links)[:_MOST_ROWS],
        links=analysis.links,
        instances=packed_instances(analysis.collectives.table),
    )


def renumbered(summary: RankSummary, rank: int) -> RankSummary:
    """The summary with its rank in every row."""
    rows = {
        name: [msgspec.structs.replace(row, rank=rank) for row in getattr(summary, name)]
        for name in ("devices", "efficiency", "communication")
    }
    return msgspec.structs.replace(summary, **rows)


def _middle(steps: list[Step]) -> list[Step]:
    first = max(len(steps) - MOST_STEPS, 0) // 2
    return steps[first : first + MOST_STEPS]
