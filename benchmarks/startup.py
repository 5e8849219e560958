"""How long ``whystall --help`` takes, beside a Python that does nothing: the median of several starts.

python benchmarks/startup.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

STARTS = 15
PROGRAMS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "whystall --help": [sys.executable, "-c", "import sys; from whystall.cli import main; sys.exit(main(['--help']))"],
}


def median_ms(command: list[str]) -> float:
    """The median wall time of ``command``, in milliseconds."""
    times = []
    for _ in range(STARTS):
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times)


def main() -> None:
    """Prints one line per program."""
    for name, command in PROGRAMS.items():
        print(f"{name:16} {median_ms(command):6.1f} ms")


if __name__ == "__main__":
    main()
