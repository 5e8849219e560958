"""Writes simulated cases: one folder per case with a trace per rank and ``truth.json``.

python -m benchmarks.accuracy.simulator OUT [--only PART] [--quick] [--jobs N]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.accuracy.simulator.registry import all_cases, by_name
from benchmarks.accuracy.simulator.truth import write_case


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="folder to write to")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--quick", action="store_true", help="the subset that CI runs")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    asked = parser.parse_args()
    wanted = [case.name for case in all_cases() if asked.only in case.name and (case.quick or not asked.quick)]
    write_all(wanted, asked.out, asked.jobs)


def write_all(names: Sequence[str], out: Path, jobs: int) -> None:
    """Write cases, a folder each, and say what they are on stderr."""
    with ProcessPoolExecutor(jobs) as pool:
        for truth in pool.map(_write, names, [out / name for name in names]):
            gains = json.dumps(truth["removed_speedup"])
            print(f"{truth['name']:44} {truth['step_ns'] / 1e6:9.3f} ms  {gains}", file=sys.stderr, flush=True)


def _write(name: str, folder: Path) -> dict[str, Any]:
    return write_case(by_name(name), folder)


if __name__ == "__main__":
    main()
