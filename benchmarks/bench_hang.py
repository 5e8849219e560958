"""What naming the rank that hangs costs: real gloo jobs that hang, their dumps, and CPU seconds of `whystall hang`.

    python -m benchmarks.bench_hang

Three processes of `tests/fleet/jobs/hang.py`, of which one sleeps, skips a collective or calls another; the budget is
5 CPU seconds, start of Python included.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fleet.test_real_hangs import ran

FAULTS = ("sleep", "skip", "other")


def cpu_s() -> float:
    """CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Prints a row for each fault and form of dump."""
    print("| fault | dumps | CPU seconds | |\n|---|---|--:|---|")
    for fault in FAULTS:
        with tempfile.TemporaryDirectory() as folder:
            dumps = ran(fault, Path(folder))
            for form in ("pickle", "json"):
                before = cpu_s()
                command = [sys.executable, "-m", "whystall", "hang", str(dumps / form)]
                told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                print(f"| {fault} | {form} | {cpu_s() - before:.2f} | {told.splitlines()[0]} |", flush=True)


if __name__ == "__main__":
    main()
