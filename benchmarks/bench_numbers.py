"""Idle time, compute time and overlap of real traces: the reference, whystall and HTA side by side in one run.

    python benchmarks/bench_numbers.py

The reference is ``expected.json``: interval unions over exact decimal timestamps by an independent program.
"""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import whystall

HERE = Path(__file__).resolve().parent
TRACES = HERE.parents[1] / "shared" / "traces"
PEER_PYTHON = HERE.parent / ".venv-peers" / "bin" / "python"


def by_whystall(path: Path) -> dict[str, Any]:
    """Our numbers."""
    (device,) = whystall.analyze(path, cache=False).devices
    overlap = device.compute_communication_overlap_ns / device.communication_ns if device.communication_ns else None
    return {
        "idle_ns": device.idle_ns,
        "compute_ns": device.compute_ns,
        "overlap_percent": None if overlap is None else 100 * overlap,
    }


def by_hta(path: Path) -> dict[str, Any]:
    """HTA's numbers, or why there are none."""
    if not PEER_PYTHON.exists():
        return {"failed": "not installed (make .venv-peers/.ready)"}
    command = [str(PEER_PYTHON), str(HERE / "peers" / "hta_numbers.py"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode != 0 or not done.stdout.strip():
        return {"failed": "no result"}
    said: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return said


def deviation(measured: float | None, truth: float | None) -> str:
    """How far a number is from the truth."""
    if truth is None:
        return "-"
    if measured is None or math.isnan(measured):
        return "none"
    if measured == truth:
        return "exact"
    return f"{(measured / truth - 1) * 100:+.2f} %" if truth else f"{measured:.0f} for 0"


def main() -> None:
    """The command line."""
    expected = json.loads((TRACES / "expected.json").read_text("utf-8"))
    print(
        "| trace | idle: whystall | HTA | compute: whystall | HTA | overlap: whystall | HTA |\n"
        "|---|---|---|---|---|---|---|"
    )
    for name, truth in expected.items():
        communication = truth["communication_ns"]
        overlap = 100 * truth["compute_communication_overlap_ns"] / communication if communication else None
        ours, theirs = by_whystall(TRACES / name), by_hta(TRACES / name)
        cells = []
        for key, true in (
            ("idle_ns", truth["idle_ns"]),
            ("compute_ns", truth["compute_ns"]),
            ("overlap_percent", overlap),
        ):
            cells += [deviation(ours[key], true), theirs.get("failed") or deviation(theirs[key], true)]
        print(f"| {name.removesuffix('.gz').removesuffix('.json')} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
