"""Metrics of a job, and their text for Prometheus (node exporter's textfile collector)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from whystall.report.names import clean
from whystall.vocabulary.metrics import (
    GAIN,
    LEDGER_SHARE,
    METRICS,
    PACE,
    PART_SHARE,
    STEP_DURATION,
    Histogram,
    Point,
)

if TYPE_CHECKING:
    from whystall.report.schema import Report


_BEGINNING: Final = f"# HELP {METRICS[0].name} ".encode()


@dataclass(frozen=True, slots=True)
class RankMetrics:
    """Facts about one rank: its steps by length, its latest pace, and that pace relative to the first."""

    rank: int
    steps: Histogram
    shares: dict[str, float]
    ratio: float | None


def points_of_ranks(ranks: Sequence[RankMetrics]) -> Iterator[Point]:
    """Metrics from the steps of a job."""
    for one in ranks:
        rank = {"rank": str(one.rank)}
        yield Point(STEP_DURATION, rank, one.steps)
        for part, share in one.shares.items():
            yield Point(PART_SHARE, rank | {"part": part}, share)
        if one.ratio is not None:
            yield Point(PACE, rank, one.ratio)


def points_of_report(report: Report) -> Iterator[Point]:
    """Metrics from a report: the ledger of each device, and the findings that count, each cause once."""
    for device in report.devices:
        labels = {"rank": str(device.rank), "device": str(device.device)}
        for part in device.ledger.__struct_fields__:
            yield Point(LEDGER_SHARE, labels | {"part": part}, getattr(device.ledger, part) / max(device.window_ns, 1))
    gains: dict[str, tuple[float, str]] = {}
    for finding in report.findings:
        if finding.gain is not None and finding.severity != "info" and math.isfinite(finding.gain.expected):
            found = (finding.gain.expected, finding.severity)
            gains[finding.id] = max(found, gains.get(finding.id, found))
    for cause, (gain, severity) in gains.items():
        yield Point(GAIN, {"cause": clean(cause, 200), "severity": severity}, gain)


def are_metrics(head: bytes) -> bool:
    """Whether a file that begins so was written by `metrics_text`."""
    return head.startswith(_BEGINNING)


def metrics_text(run: str, points: Sequence[Point]) -> str:
    """The text of Prometheus' file."""
    lines = []
    for metric in METRICS:
        lines += [f"# HELP {metric.name} {metric.meaning}", f"# TYPE {metric.name} {metric.kind}"]
        for point in points:
            if point.metric is metric:
                lines += _lines(metric.name, {"run": run, **point.labels}, point.value)
    return "\n".join([*lines, ""])


def _lines(name: str, labels: dict[str, str], value: float | Histogram) -> Iterator[str]:
    if not isinstance(value, Histogram):
        yield f"{name}{_labels(labels)} {value:.4f}"
        return
    counts = list(accumulate(value.counts))
    for bound, count in zip([*map(str, value.bounds), "+Inf"], counts, strict=True):
        yield f"{name}_bucket{_labels(labels | {'le': bound})} {count}"
    yield f"{name}_sum{_labels(labels)} {value.total:.6f}"
    yield f"{name}_count{_labels(labels)} {counts[-1]}"


def _labels(labels: dict[str, str]) -> str:
    def quoted(value: str) -> str:
        return clean(value, 200).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{name}="{quoted(value)}"' for name, value in labels.items()) + "}"
