"""What `whystall tune` recovers of what the best settings by hand gain: three badly set jobs, two healthy ones.

    python benchmarks/bench_tune.py           # some twenty minutes; the machine should do nothing else
    python benchmarks/bench_tune.py loader    # one of them

Each job is tuned once. Then it runs as it was, with what was found and with some settings by hand, in turns, and prints
its mean step by its own clock; medians of the turns are compared, and the best of the settings by hand counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

JOB = Path(__file__).parent / "tuning" / "jobs.py"
# What an experienced hand would try, per job; the best of them counts.
BY_HAND: dict[str, tuple[dict[str, Any], ...]] = {
    "loader": ({"num_workers": 2}, {"num_workers": 4}, {"num_workers": 8, "prefetch_factor": 4}),
    "threads": ({"threads": 1}, {"threads": 2}),
    "optimizer": ({"fused": True},),
    "healthy_memory": (),
    "healthy_workers": (),
}
TURNS = 3
MEASURED_STEPS = 60


def tuned(name: str) -> tuple[dict[str, Any], float]:
    """What the search says, and the seconds it took."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "whystall", "tune", "-q", "--json", "--steps", "50", "-o", f"{folder}/found"]
        command += ["--loss", "loss ([0-9.]+)", os.fspath(JOB), name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{name}: {done.stderr[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found, time.monotonic() - began


def step_s(name: str, by_hand: dict[str, Any]) -> float:
    """The mean step of a run, by the job's own clock."""
    environment = os.environ | {"WHYSTALL_HAND": json.dumps({"steps": MEASURED_STEPS, **by_hand})}
    command = [sys.executable, os.fspath(JOB), name]
    out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return float(out.rsplit("mean step", 1)[1])


def as_by_hand(settings: dict[str, Any]) -> dict[str, Any]:
    """What a search found, as the jobs take it."""
    found = {name: value for name, value in settings.items() if name in ("num_workers", "threads", "prefetch_factor")}
    return found | ({settings["optimizer"]: True} if "optimizer" in settings else {})


def row(name: str) -> str:
    """A job's row."""
    found, seconds = tuned(name)
    settings = found["settings"]
    told = ", ".join(f"{key}={value}" for key, value in settings.items()) or "nothing to gain"
    head = f"| {name} | {told} | {len(found['trials'])} | {found['runs']} | {seconds / 60:.1f} | {found['noise']:.2f} |"
    if not BY_HAND[name]:
        return f"{head} | | | |"
    mine = as_by_hand(settings)
    variants = {json.dumps(one): one for one in ({}, mine, *BY_HAND[name])}  # what both chose is measured once
    turns = [[step_s(name, one) for one in variants.values()] for _ in range(TURNS)]
    steps = dict(zip(variants, map(statistics.median, zip(*turns, strict=True)), strict=True))
    before, after = steps["{}"], steps[json.dumps(mine)]
    hand = min(map(json.dumps, BY_HAND[name]), key=lambda one: steps[one])
    recovered = (before - after) / (before - steps[hand])
    return f"{head} {before * 1e3:.1f} | {after * 1e3:.1f} | {steps[hand] * 1e3:.1f} ({hand}) | {recovered:.0%} |"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(BY_HAND))
    options = parser.parse_args()
    print("| job | found | trials | runs | minutes | noise | step before, ms | tuned | best by hand | recovered |")
    print("|---|---|--:|--:|--:|--:|--:|--:|---|--:|")
    for name in options.names:
        print(row(name), flush=True)


if __name__ == "__main__":
    main()
