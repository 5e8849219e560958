"""Verdicts, self-checks and predictions on served runs whose truth is known.

    python -m benchmarks.bench_serving ../shared/samples/serving

Each folder is a run. Pairs of them differ by one setting: the prediction from the first is put beside the second.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from whystall.serving.cause import Finding
from whystall.serving.diagnose import diagnose
from whystall.serving.folder import read_run
from whystall.serving.parts import Part
from whystall.serving.predictions import Prediction, Replayer
from whystall.serving.replay import Played, Server, play
from whystall.serving.run_analysis import Analysis, analyze_run
from whystall.serving.what_if import changed_server

PAIRS: tuple[tuple[str, str, dict[str, int]], ...] = (
    ("kv-enough", "kv-preemption", {"--num-gpu-blocks-override": 20}),
    ("kv-preemption", "kv-enough", {"--num-gpu-blocks-override": 10_922}),
    ("mixed-budget-default", "mixed-budget-256", {"--max-num-batched-tokens": 256}),
    ("max-num-seqs-1", "healthy", {"--max-num-seqs": 128}),
    ("healthy", "healthy-again", {}),
    ("healthy-again", "healthy", {}),
)
MS = 1e6


def runs(folder: Path) -> Iterator[tuple[str, Analysis]]:
    """Each run below a folder, by name."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and ((path / "bench.json").exists() or list(path.glob("guidellm*"))):
            yield path.name, analyze_run(read_run([path]))


def verdict_row(name: str, analysis: Analysis) -> str:
    """The row of the first table."""
    found = diagnose(analysis)
    first: Finding | None = found.findings[0] if found.findings else None
    cause = f"`{first.cause.id}`" if first is not None else found.blame
    share = f"{first.share:.0%}" if first is not None else ""
    member = analysis.membership
    steps = "" if member is None else f"{member.steps:,} / {member.mismatched}"
    queue = sum(one.of(Part.QUEUE) for one in analysis.ledgers) / max(len(analysis.ledgers), 1) / MS
    counted = analysis.run.counted("request_queue_time_seconds_sum")
    server = "" if counted is None else f"{counted * 1e3 / len(analysis.ledgers):,.1f}"
    check = "" if found.check is None else f"{found.check.error:.1%}"
    return f"| {name} | {cause} | {share} | {steps} | {queue:,.1f} / {server} | {check} |"


def pair_rows(before: Analysis, after: Analysis, names: str, changes: Mapping[str, int]) -> Iterator[str]:
    """Rows of predictions beside measurements; the last column is played on the second run's machine."""
    replayer, other = Replayer(before), Replayer(after)
    server = changed_server(replayer.server, changes)
    found: Prediction | None = replayer.predict("", server=server)
    truth, moved = other.check, on_machine_of(replayer, other, server)
    if found is None or truth is None or moved is None:
        return
    for metric, measured in zip(found.metrics, truth.metrics, strict=True):
        values = [one / MS for one in (metric.after_ns, metric.low_ns, metric.high_ns, measured.before_ns)]
        predicted, low, high, real = values
        name = f"{metric.name} p{metric.percentile}"
        there = float(np.percentile(getattr(moved, f"{metric.name}_ns"), metric.percentile)) / MS
        interval = f"{predicted:,.0f} ({low:,.0f} to {high:,.0f})"
        errors = f"{predicted / real - 1:+.0%} | {there / real - 1:+.0%}"
        yield f"| {names} | {name} | {interval} | {real:,.0f} | {errors} |"


def on_machine_of(replayer: Replayer, other: Replayer, server: Server) -> Played | None:
    """The first run's load with the change, at the second run's cost of a step and pace."""
    shift = min(one.sent_ns for one in other.loads) - min(one.sent_ns for one in replayer.loads)
    loads = [replace(one, sent_ns=one.sent_ns + shift, due_ns=None) for one in replayer.loads]
    if other.model is None:
        return None
    return play(loads, server, other.model, gap_ns=other.gap_ns, machine=other.machines[0])


def main() -> None:
    """Prints both tables."""
    found = dict(runs(Path(sys.argv[1])))
    print("| run | verdict | of a request | steps / not explained | queue, ms: ledger / server | self-check |")
    print("|---|---|---:|---:|---:|---:|")
    for name, analysis in found.items():
        print(verdict_row(name, analysis))
    print("\n| from → to | metric, ms | predicted | measured | error | on its machine |\n|---|---|---:|---:|---:|---:|")
    for before, after, changes in PAIRS:
        if before in found and after in found:
            print("\n".join(pair_rows(found[before], found[after], f"{before} → {after}", changes)))


if __name__ == "__main__":
    main()
