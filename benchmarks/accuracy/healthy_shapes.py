"""Runs the healthy scripts of many shapes under `whystall run`, and tells what is found in each.

    python -m benchmarks.accuracy.healthy_shapes [SHAPE ...] [--seconds 12] [--out DIR]

Nothing of minor or above is to be told of any; what other processes do to the machine is set aside and said.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = Path(__file__).parent / "jobs" / "shapes.py"
COUNTED = ("minor", "major", "critical")
NEIGHBOURS = ("host.cpu-contention",)
MEANT = {"recomputation": "compute.redundant-work"}
"""What a script does on purpose and is told with its condition: it computes again what memory has no room for."""


def main() -> int:
    """The exit code: 1 where anything is told of a healthy script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", nargs="*")
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    out = asked.out or Path(tempfile.mkdtemp())
    shapes = asked.shape or _shapes()
    alarms = 0
    for shape in shapes:
        found = _told(shape, out / shape, asked.seconds)
        own = [one for one in found if one.split()[0] not in (*NEIGHBOURS, MEANT.get(shape))]
        alarms += bool(own)
        print(f"{shape:20} {'; '.join(found) or 'nothing'}", flush=True)
    print(f"told of something: {alarms} of {len(shapes)}")
    return int(alarms > 0)


def _shapes() -> list[str]:
    done = subprocess.run([sys.executable, str(SCRIPT), "--help"], capture_output=True, text=True, check=True)
    names = done.stdout.partition("{")[2].partition("}")[0]
    return [name.strip() for name in names.replace("\n", " ").split(",")]


def _told(shape: str, folder: Path, seconds: float) -> list[str]:
    command = [sys.executable, "-m", "whystall", "run", "-f", "-o", str(folder), str(SCRIPT), shape]
    done = subprocess.run([*command, "--seconds", str(seconds)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{shape} failed: {done.stderr[-2000:]}")
    report = json.loads((folder / "report.json").read_text())
    return [
        f"{one['id']} ({one['severity']}, {one['gain']['expected']:.2f})" if one["gain"] else one["id"]
        for one in report["findings"]
        if one["severity"] in COUNTED
    ]


if __name__ == "__main__":
    raise SystemExit(main())
