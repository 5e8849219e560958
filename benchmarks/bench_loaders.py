"""What `whystall probe data` predicts of six loaders, beside what plain loaders of torch's then supply.

    python benchmarks/bench_loaders.py               # some twelve minutes; the machine should do nothing else
    python benchmarks/bench_loaders.py decode_bound  # one of them

A loader is probed once, as a user would do it, between two rounds of measurements in processes of their own; the median
of the rounds is what counts. Supply is counted after the first batches, of samples that never end.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

WORKERS = range(5)
ROUNDS = 7
SECONDS = 1.0
HERE = Path(__file__).parent


def supply(name: str, workers: int, seconds: float) -> float:
    """Samples per second of a plain loader with so many workers."""
    import loaders  # noqa: PLC0415 - imports torch, which only a measuring process needs
    from torch.utils.data import DataLoader  # noqa: PLC0415

    given = getattr(loaders, name)()
    endless = list(range(len(given.dataset))) * 500
    loader = DataLoader(
        given.dataset,
        batch_size=given.batch_size,
        sampler=endless,
        num_workers=workers,
        collate_fn=given.collate_fn,
    )
    batches = iter(loader)
    for _ in range(4 * workers + 2):
        next(batches)
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds or count < 8:
        next(batches)
        count += 1
    return count * int(given.batch_size) / (time.perf_counter() - began)


def measured(name: str) -> list[float]:
    """The same for each number of workers, in a process of its own."""
    command = [sys.executable, __file__, name, "--supply"]
    found: list[float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def probed(name: str) -> dict[str, object]:
    """What the probe says."""
    command = [sys.executable, "-m", "whystall", "probe", "data", f"{HERE / 'loaders.py'}:{name}", "--json", "-q"]
    found: dict[str, object] = json.loads(
        subprocess.run(
            [*command, "--max-workers", str(max(WORKERS))], capture_output=True, text=True, check=True
        ).stdout
    )
    return found


def spread(times: tuple[float, ...]) -> float:
    """How far apart the middle half of the rounds lies."""
    low, _, high = statistics.quantiles(times, n=4)
    return high / low


def row(name: str) -> str:
    """A loader's row: predicted / measured for each number of workers, and the proposal."""
    rounds: list[list[float]] = []
    found: dict[str, object] = {}
    for index in range(ROUNDS):
        if index == ROUNDS // 2:
            found = probed(name)
        rounds.append(measured(name))
    truth = [statistics.median(column) for column in zip(*rounds, strict=True)]
    scatter = max(spread(column) for column in zip(*rounds, strict=True))
    rows, proposed = found["workers"], found["proposed"]
    assert isinstance(rows, list)  # noqa: S101 - of our own JSON
    assert isinstance(proposed, dict)  # noqa: S101
    predicted = [one["samples_per_s"] for one in rows]
    cells = [f"{a:,.0f} / {b:,.0f} ({a / b - 1:+.0%})" for a, b in zip(predicted, truth, strict=True)]
    workers = proposed["num_workers"]
    part = truth[workers] / max(truth)
    return f"| {name} | {' | '.join(cells)} | {found['binds']} | {workers} | {part:.0%} | {scatter:.2f} |"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("in_memory", "decode_bound", "storage_bound", "ipc_bound", "heavy_tailed", "collate_bound")
    parser.add_argument("names", nargs="*", default=names)
    parser.add_argument("--supply", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.supply:
        print(json.dumps([supply(options.names[0], workers, SECONDS) for workers in WORKERS]))
        return
    heads = " | ".join(f"{workers}" for workers in WORKERS)
    print(f"| loader | {heads} | binds | proposed | of the best measured | middle half of the rounds |")
    print(f"|---|{'--:|' * len(WORKERS)}---|--:|--:|--:|")
    for name in options.names:
        print(row(name), flush=True)


if __name__ == "__main__":
    main()
