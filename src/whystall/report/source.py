"""The sources of a report: the files of all ranks, their missing signals and their losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from whystall.analysis.trace_analysis import TraceAnalysis
from whystall.fleet.spans import spans
from whystall.fleet.summary import Candidate
from whystall.report.schema import Dropped, Source, SourceFile
from whystall.trace.model import Quarantine, Trace
from whystall.vocabulary.signals import SIGNALS

# With more ranks each sentence comes once, with its ranks.
_FEW: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A report's part on one rank's recording, from its trace or its summary."""

    name: str
    rank: int
    file_bytes: int
    raw_bytes: int
    events: int
    truncated: bool
    warnings: Sequence[str]
    quarantined: Sequence[Quarantine]
    lacks: Sequence[str]
    signals: dict[str, bool]
    framework: str | None
    may_be_pytorch: bool
    version: str | None
    world_size: int | None
    host: int | None
    in_depth: bool


def recording_of(trace: Trace, analysis: TraceAnalysis) -> Recording:
    """That of a trace."""
    return Recording(
        name=trace.name,
        rank=analysis.rank,
        file_bytes=trace.source.file_bytes,
        raw_bytes=trace.source.raw_bytes,
        events=trace.source.events,
        truncated=trace.source.truncated,
        warnings=trace.source.warnings,
        quarantined=trace.source.quarantined,
        lacks=analysis.lacks,
        signals=analysis.signals,
        framework=trace.metadata.framework,
        may_be_pytorch=trace.metadata.may_be_pytorch,
        version=trace.metadata.versions.get("pytorch_version"),
        world_size=trace.metadata.world_size,
        host=trace.metadata.host,
        in_depth=True,
    )


def summarised(one: Candidate) -> Recording:
    """The recording of a rank from its summary."""
    shared = {field: getattr(one.summary, field) for field in Recording.__dataclass_fields__ if field not in _OWN}
    return Recording(name=one.summary.facts.name, rank=one.rank, in_depth=False, **shared)


_OWN: Final = frozenset({"name", "rank", "in_depth"})


def source_of(read: Sequence[Recording], problems: Sequence[str], *, watched: bool) -> Source:
    """The input. In a ``watched`` job devices were recorded if it used any: none of them is missing.

    ``problems`` are sentences on parts that were left out or could not be read; missing signals come before them.
    """
    known = read[0].signals if read else {}
    signals = {key: all(one.signals[key] for one in read) for key in known}
    on_cpu = not any(one.signals["device_events"] for one in read)
    # How to record more is known of PyTorch's profiler alone.
    ours = all(one.may_be_pytorch for one in read)
    missing = [
        f"{entry.wanted if ours else entry.name}{_of_ranks(read, key)}"
        for key, entry in SIGNALS.items()
        if entry.how
        and not signals.get(key, True)
        and not (on_cpu and (entry.device or (watched and key == "device_events")))
    ]
    lacks = _told([(one, sentence) for one in read for sentence in one.lacks], len(read))
    warnings = _told([(one, sentence) for one in read for sentence in one.warnings], len(read))
    return Source(
        files=[
            SourceFile(
                path=one.name,
                rank=one.rank,
                bytes=one.file_bytes,
                raw_bytes=one.raw_bytes,
                events=one.events,
                truncated=one.truncated,
                in_depth=one.in_depth,
                host=one.host,
            )
            for one in read
        ],
        framework=_framework(read),
        ranks=sorted(one.rank for one in read),
        world_size=world_size(read),
        events=sum(one.events for one in read),
        dropped=[
            Dropped(reason=entry.reason, events=entry.events, device_ns=entry.device_ns, rank=one.rank)
            for one in read
            for entry in one.quarantined
        ],
        warnings=[*lacks, *problems, *warnings],
        missing_signals=missing,
        signals=signals,
    )


def world_size(read: Sequence[Recording]) -> int | None:
    """Number of ranks of the job, as far as a recording shows it."""
    return max((size for one in read if (size := one.world_size) is not None), default=None)


def _of_ranks(read: Sequence[Recording], signal: str) -> str:
    """The ranks without a signal, where others have it."""
    without = [one.rank for one in read if not one.signals[signal]]
    if len(without) == len(read):
        return ""
    return f" on {'rank' if len(without) == 1 else 'ranks'} {spans(without)}"


def _told(sentences: Sequence[tuple[Recording, str]], recordings: int) -> list[str]:
    """The sentences, each with its file if there are several; of many files with their ranks."""
    if recordings <= _FEW:
        return [f"{one.name}: {sentence}" if recordings > 1 else sentence for one, sentence in sentences]
    ranks: dict[str, list[int]] = {}
    for one, sentence in sentences:
        ranks.setdefault(sentence, []).append(one.rank)
    return [
        f"{'rank' if len(own) == 1 else 'ranks'} {spans(own)}: {sentence}"
        for sentence, own in sorted(ranks.items(), key=lambda item: (-len(item[1]), item[0]))
    ]


def _framework(read: Sequence[Recording]) -> str | None:
    """The frameworks by name, PyTorch with its versions; samples without a trace are always of PyTorch."""
    names = {one.framework for one in read} if read else {"pytorch"}
    versions = sorted({one.version or "" for one in read} - {""})
    told = [
        f"{name} {', '.join(versions)}" if name == "pytorch" and versions else name
        for name in sorted(filter(None, names))
    ]
    return " and ".join(told) or None
