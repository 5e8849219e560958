"""What `analyze` costs beside another version: CPU time and peak memory of the whole command, in alternating runs.

    git worktree add ../before REVISION
    python3 -m venv ../before/.venv && ../before/.venv/bin/python -m pip install ../before
    python3 -m venv ../after && ../after/bin/python -m pip install .
    python benchmarks/against.py ../before/.venv/bin/python ../after/bin/python --pairs 10 TRACE...

Both are installed alike (an editable install imports more slowly), and no cache is read. A ratio below 1 is cheaper.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
from pathlib import Path


def cost(python: str, trace: Path) -> tuple[float, float]:
    """The CPU seconds and the peak resident MB of one `whystall analyze` of ``trace``."""
    command = [python, "-m", "whystall", "analyze", "--quiet", "--json", "--no-cache", os.fspath(trace)]
    with subprocess.Popen(command, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        _, status, used = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    """Prints one row per trace."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--pairs", type=int, default=10)
    given = parser.parse_args()
    print("| trace | CPU s before | after | ratio | peak MB before | after | ratio |\n|---|---|---|---|---|---|---|")
    for trace in given.traces:
        found = [(cost(given.before, trace.resolve()), cost(given.after, trace.resolve())) for _ in range(given.pairs)]
        cells = []
        for column in (0, 1):
            before = statistics.median(pair[0][column] for pair in found)
            after = statistics.median(pair[1][column] for pair in found)
            ratio = statistics.median(pair[1][column] / pair[0][column] for pair in found)
            cells += [f"{before:.2f}", f"{after:.2f}", f"{ratio:.3f}"]
        print("|", " | ".join([trace.name, *cells]), "|", flush=True)


if __name__ == "__main__":
    main()
