"""Measures what the cause in each job costs: CPU and wall seconds per step, with the cause and without it.

    PYTHON measure.py [JOB ...] [--rounds 2] [--share 1.0] [--core N]

PYTHON is one that has the packages which the jobs import (torch, transformers, datasets, accelerate, lightning,
sentence-transformers, torch_geometric, stable-baselines3, wandb); no job needs a network. Without names, every job of
`jobs.toml` is run. Each is run as given and with `--fixed`, alternately, `--rounds` times, one process at a time, bound
to one core (`--core`, by default the last that this process may use), so that torch's own default is one thread and
nothing that spins beside a busy machine counts as work. `--share` scales the default number of steps.

A job itself prints `steps=.. cpu_s=.. wall_s=..`: user and system seconds (`os.times()`, of the process and of the
children that it has waited for) and wall seconds, from the end of its fifth step to the end of its last. A gain is the
least seconds per step of the runs as given divided by the least of the fixed ones: what others do on the machine only
adds. CPU seconds are the sounder of the two where the machine is shared.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
JOBS = HERE / "jobs"
LAST_LINE = re.compile(r"^steps=(\d+) cpu_s=([\d.]+) wall_s=([\d.]+)$", re.MULTILINE)
DEFAULT_STEPS = re.compile(r"arguments\(steps=(\d+)\)")
LIMIT_S = 240


def run(name: str, *, fixed: bool, share: float, core: int) -> tuple[float, float]:
    """The CPU and wall seconds per step of one run."""
    script = JOBS / f"{name}.py"
    default = DEFAULT_STEPS.search(script.read_text())
    if default is None:
        raise SystemExit(f"{script} does not say how many steps it takes")
    command = ["taskset", "-c", str(core), sys.executable, str(script), "--steps", str(int(int(default[1]) * share))]
    if fixed:
        command.append("--fixed")
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline", "TMPDIR": folder}
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    last = LAST_LINE.search(done.stdout)
    if done.returncode or last is None:
        raise SystemExit(f"{name} failed ({done.returncode}):\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    steps, cpu, wall = int(last[1]), float(last[2]), float(last[3])
    return cpu / steps, wall / steps


def main() -> None:
    """Measure the jobs and print a row for each."""
    cores = os.sched_getaffinity(0)
    parser = argparse.ArgumentParser(description="What the cause in each job costs.")
    parser.add_argument("jobs", nargs="*")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--core", type=int, default=max(cores))
    args = parser.parse_args()
    known = list(tomllib.loads((HERE / "jobs.toml").read_text()))
    print("| job | CPU ms per step, given | fixed | gain, CPU | gain, wall | CPU ms of each run: given; fixed |")
    print("|---|---|---|---|---|---|")
    for name in args.jobs or known:
        given, fixed = [], []
        for _ in range(args.rounds):
            given.append(run(name, fixed=False, share=args.share, core=args.core))
            fixed.append(run(name, fixed=True, share=args.share, core=args.core))
        (given_cpu, given_wall), (fixed_cpu, fixed_wall) = (
            [min(seconds) for seconds in zip(*runs, strict=True)] for runs in (given, fixed)
        )
        each = "; ".join(" ".join(f"{1000 * cpu:.0f}" for cpu, _ in runs) for runs in (given, fixed))
        print(
            f"| {name} | {1000 * given_cpu:.0f} | {1000 * fixed_cpu:.0f} | {given_cpu / fixed_cpu:.2f}"
            f" | {given_wall / fixed_wall:.2f} | {each} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
