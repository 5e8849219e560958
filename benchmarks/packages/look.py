"""Watches the jobs of `jobs.toml` and compares each verdict with the truth.

    python -m benchmarks.packages.look --python PYTHON [JOB ...] [--out DIR] [--core N] [--recorded]

PYTHON has the packages (see `measure.py`). Each job runs once under `whystall run`, bound to one core, as its gain was
measured. `--recorded` analyses the recordings in DIR again. The exit status is 1 if a cause is not named first, or if
a cause of the healthy job is named.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import whystall

HERE = Path(__file__).parent
COUNTED = ("minor", "major", "critical")
LIMIT_S = 600


def watched(name: str, folder: Path, python: str, core: int) -> None:
    """Runs a job under whystall."""
    run = [str(Path(sys.executable).with_name("whystall")), "run", "--quiet", "--force", "-o", str(folder.resolve())]
    command = ["taskset", "-c", str(core), *run, "--", python, str(HERE / "jobs" / f"{name}.py")]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=LIMIT_S)


def row(name: str, job: dict[str, Any], folder: Path) -> tuple[str, bool]:
    """A job's first finding beside its truth, as a table row, and whether it is right."""
    report = json.loads(whystall.render(whystall.analyze(folder), "json"))
    first = next((one for one in report["findings"] if one["severity"] in COUNTED), None)
    right = first is None if not job["causes"] else first is not None and first["id"] in job["causes"]
    gain = first["gain"] if first else None
    said = f"{gain['expected']:.2f} ({gain['floor']:.2f} to {gain['ceiling']:.2f})" if gain else "-"
    lines = [str(one["line"]) for one in (first or {"code": []})["code"] if one["line"]]
    cells = (name, job["about"], first["id"] if first else "nothing", f"{job['gain']:.2f}", said, " ".join(lines[:3]))
    return f"| {' | '.join(cells)} | {'yes' if right else 'no'} |", right


def main() -> int:
    """Looks at what is asked for and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--out", type=Path, default=Path("whystall-runs/packages"))
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--recorded", action="store_true")
    args = parser.parse_args()
    known = tomllib.loads((HERE / "jobs.toml").read_text())
    print("| job | what is slow | said first | gain | said gain | lines | right |\n|---|---|---|---|---|---|---|")
    results = []
    for name in args.jobs or known:
        if not args.recorded:
            watched(name, args.out / name, args.python, args.core)
        line, right = row(name, known[name], args.out / name)
        results.append(right)
        print(line, flush=True)
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
