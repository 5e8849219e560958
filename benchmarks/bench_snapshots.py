"""Explaining a memory snapshot of a gigabyte, beside `pickle.load` of the same file in the same run.

    python benchmarks/bench_snapshots.py                  # 1 GB, as torch shares frames and as converters repeat them
    python benchmarks/bench_snapshots.py --gigabytes 0.1  # smaller, for a first look

Each measurement is a process of its own; CPU seconds and peak memory are those of the whole process, imports included.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from grow_snapshot import write_snapshot

LOAD = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"
CONTENDERS = (
    ("whystall memory", [sys.executable, "-m", "whystall", "memory", "--quiet", "--json"]),
    ("pickle.load", [sys.executable, "-c", LOAD]),
)


def measure(command: list[str], path: Path) -> tuple[float, float, int]:
    """CPU seconds, peak resident megabytes and the exit code of one process."""
    with subprocess.Popen([*command, os.fspath(path)], stdout=subprocess.DEVNULL) as running:
        _, status, used = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, running.returncode


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    options = parser.parse_args()
    print("| snapshot | events | | CPU seconds | peak memory in MB | |\n|---|--:|---|--:|--:|---|")
    for shared in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "snapshot.pickle"
            events = write_snapshot(path, int(options.gigabytes * 1e9), shared_frames=shared)
            told = f"{path.stat().st_size / 1e6:,.0f} MB, frames {'shared' if shared else 'repeated'} | {events:,}"
            for name, command in CONTENDERS:
                cpu_s, peak_mb, code = measure(command, path)
                failed = f"ended with {code}" if code else ""
                print(f"| {told} | {name} | {cpu_s:.1f} | {peak_mb:,.0f} | {failed} |", flush=True)


if __name__ == "__main__":
    main()
