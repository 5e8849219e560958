"""What a running job is known to do, as Prometheus reads it from a text file (node exporter's textfile collector)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from whystall.report.names import clean


@dataclass(frozen=True, slots=True)
class RankMetrics:
    """What is known of one rank: its steps by length, its latest pace, and how that compares with its first one."""

    rank: int
    bounds_s: Sequence[float]
    buckets: Sequence[int]
    total_s: float
    shares: dict[str, float]
    ratio: float | None


def metrics_text(run: str, ranks: Sequence[RankMetrics], findings: Sequence[tuple[str, str, float]]) -> str:
    """The text of the file. ``findings`` are cause, severity and expected gain of those that count."""
    return "\n".join([*_steps(run, ranks), *_shares(run, ranks), *_ratios(run, ranks), *_findings(run, findings), ""])


def _labels(**labels: object) -> str:
    def quoted(value: object) -> str:
        return clean(str(value), 200).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{name}="{quoted(value)}"' for name, value in labels.items()) + "}"


def _steps(run: str, ranks: Sequence[RankMetrics]) -> Iterator[str]:
    name = "whystall_step_duration_seconds"
    yield f"# HELP {name} Time from one step's end to the next one's, steps under the profiler left out."
    yield f"# TYPE {name} histogram"
    for one in ranks:
        counts = list(accumulate(one.buckets))
        for bound, count in zip([*map(str, one.bounds_s), "+Inf"], counts, strict=True):
            yield f"{name}_bucket{_labels(run=run, rank=one.rank, le=bound)} {count}"
        yield f"{name}_sum{_labels(run=run, rank=one.rank)} {one.total_s:.6f}"
        yield f"{name}_count{_labels(run=run, rank=one.rank)} {counts[-1]}"


def _shares(run: str, ranks: Sequence[RankMetrics]) -> Iterator[str]:
    name = "whystall_step_part_share"
    yield f"# HELP {name} Share of the latest steps that a part of them takes on the training thread."
    yield f"# TYPE {name} gauge"
    for one in ranks:
        for part, share in one.shares.items():
            yield f"{name}{_labels(run=run, rank=one.rank, part=part)} {share:.4f}"


def _ratios(run: str, ranks: Sequence[RankMetrics]) -> Iterator[str]:
    name = "whystall_step_pace_ratio"
    yield f"# HELP {name} Median of the latest steps against that of the first steady ones."
    yield f"# TYPE {name} gauge"
    for one in ranks:
        if one.ratio is not None:
            yield f"{name}{_labels(run=run, rank=one.rank)} {one.ratio:.4f}"


def _findings(run: str, findings: Sequence[tuple[str, str, float]]) -> Iterator[str]:
    name = "whystall_finding_gain_ratio"
    yield f"# HELP {name} Expected speed-up of a step without a cause that was found."
    yield f"# TYPE {name} gauge"
    for cause, severity, gain in findings:
        yield f"{name}{_labels(run=run, cause=cause, severity=severity)} {gain:.4f}"
