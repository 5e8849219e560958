"""Watches the jobs of `jobs.toml`, and compares what is said with what is known.

    python -m benchmarks.jobs [--only NAME ...] [--out DIR] [--pairs N] [--recorded]

For each job: one `whystall run`, and, where its gain is not known or ``--pairs`` is given, plain runs with and without
its author's repair in alternation. `--recorded` analyses the recordings in DIR again, after a change of the rules, in
some seconds for all. The rows show how a first finding compares with the truth; the exit status is 1 where a job that
has a fault is not named or one that has none is.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import whystall

HERE = Path(__file__).parent
COUNTED = ("minor", "major", "critical")
WARM_UP = 0.2
Job = dict[str, Any]


def launcher(job: Job) -> list[str]:
    """Python, or torchrun where the job has ranks."""
    if job.get("ranks", 1) == 1:
        return [sys.executable]
    return [str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", str(job["ranks"])]


def mean_step_s(command: list[str]) -> float:
    """The mean length of the steps of a plain run, without the first fifth."""
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times"
        subprocess.run([*command, "--times", str(times)], check=True, capture_output=True, timeout=300)
        steps = [float(one) for one in re.findall(r"[\d.e-]+", times.read_text())]  # a list, or lines
    return statistics.fmean(steps[int(len(steps) * WARM_UP) :])


def measured_gain(job: Job, pairs: int, seconds: float) -> float:
    """How many times as fast the repair makes a step: the median of pairs of plain runs."""
    plain = [*launcher(job), str(HERE / job["script"]), "--seconds", str(seconds)]
    return statistics.median(mean_step_s(plain) / mean_step_s([*plain, "--better"]) for _ in range(pairs))


def watched(name: str, job: Job, out: Path, seconds: float) -> Path:
    """The run folder of a watched run."""
    folder = out / name
    command = [*launcher(job), str(HERE / job["script"]), "--seconds", str(seconds)]
    run = [str(Path(sys.executable).with_name("whystall")), "run", "--quiet", "--force", "-o", str(folder), "--"]
    subprocess.run([*run, *command], check=True, capture_output=True, timeout=600)
    return folder


def row(name: str, job: Job, folder: Path, gain: float | None) -> tuple[str, bool]:
    """A job's verdict beside its truth, as a table row, and whether the first finding is right."""
    report = json.loads(whystall.render(whystall.analyze(folder), "json"))
    first = next((one for one in report["findings"] if one["severity"] in COUNTED), None)
    right = (first is None) if not job["causes"] else (first is not None and first["id"] in job["causes"])
    told = first["gain"] if first else None
    said = f"{told['expected']:.2f} ({told['floor']:.2f} to {told['ceiling']:.2f})" if told else "-"
    known = f"{gain:.2f}" if gain else "-"
    cells = (name, job["causes"][0] if job["causes"] else "healthy", first["id"] if first else "nothing", known, said)
    return f"| {' | '.join(cells)} | {'yes' if right else 'NO'} |", right


def main() -> int:
    """Runs what is asked for and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path("whystall-runs/jobs"))
    parser.add_argument("--pairs", type=int, default=0, help="pairs of plain runs (default: 2 where no gain is known)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a plain run")
    parser.add_argument("--watch", type=float, default=14.0, help="seconds of a watched run")
    parser.add_argument("--recorded", action="store_true")
    args = parser.parse_args()
    jobs: Job = tomllib.loads((HERE / "jobs.toml").read_text())
    print("| job | truth | said first | true gain | said gain | right |\n|---|---|---|---|---|---|")
    results = []
    for name in args.only or jobs:
        job, gain = jobs[name], jobs[name].get("gain")
        pairs = args.pairs or (2 if gain is None and job["causes"] else 0)
        if pairs and not args.recorded:
            gain = measured_gain(job, pairs, args.seconds)
        folder = args.out / name if args.recorded else watched(name, job, args.out, args.watch)
        line, right = row(name, job, folder, gain)
        results.append(right)
        print(line, flush=True)
    print(f"\n{sum(results)} of {len(results)} are right.")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
