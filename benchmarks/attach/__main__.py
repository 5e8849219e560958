"""Attaches to each script while it runs and prints what was said; its output must be that of a run by itself.

python -m benchmarks.attach [NAME…] [--seconds S]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

JOBS = Path(__file__).parent / "jobs"


@dataclass(frozen=True)
class Case:
    """A script with its arguments (steps first), and the class of cause that it was written for."""

    name: str
    script: str
    arguments: tuple[str, ...]
    kind: str


CASES = (
    Case("one worker", "signals.py", ("250", "1"), "workers"),
    Case("no workers", "signals.py", ("220", "0"), "batches"),
    Case("metric in Python", "python_metric.py", ("220",), "python"),
    Case("cold files", "cold_files.py", ("500",), "storage"),
    Case("collections", "collects_garbage.py", ("200",), "gc"),
    Case("long backward", "long_backward.py", ("250",), "backward"),
    Case("checkpoints", "saves_often.py", ("150",), "checkpoint"),
    Case("logs", "writes_logs.py", ("600",), "logging"),
    Case("busy thread", "busy_thread.py", ("1500",), "gil"),
    Case("remote features", "remote_features.py", ("300",), "network"),
    Case("slow rank", "slow_rank.py", ("200",), "ranks"),
    Case("all compute", "all_compute.py", ("150",), "computes"),
)


@dataclass(frozen=True)
class Outcome:
    """What was said of a case, the script's output beside that of a run by itself, and how long both took."""

    case: Case
    said: dict[str, object]
    same: bool
    ended: bool

    @property
    def right(self) -> bool:
        """Whether the class is the one that the script was written for."""
        summary = str(self.said.get("summary", ""))
        kind = "backward" if summary.startswith("One thread is busy in the backward pass") else self.said.get("class")
        return kind == self.case.kind


def attached(case: Case, seconds: float) -> Outcome:
    """A run that is attached to once it has made some steps, and one that is left alone."""
    command = [sys.executable, str(JOBS / case.script), *case.arguments]
    lines: list[str] = []
    going = threading.Event()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:

        def read() -> None:
            for line in job.stdout or ():
                lines.append(line)
                going.set()
            going.set()

        reader = threading.Thread(target=read)
        reader.start()
        going.wait()
        tool = [
            sys.executable,
            "-m",
            "whystall",
            "attach",
            str(job.pid),
            "--json",
            "--quiet",
            "--seconds",
            str(seconds),
        ]
        ran = subprocess.run(tool, capture_output=True, text=True, check=False)
        still = job.poll() is None
        reader.join()
    alone = subprocess.run(command, capture_output=True, text=True, check=False)
    said = json.loads(ran.stdout) if ran.returncode == 0 else {"summary": ran.stderr.strip()}
    return Outcome(case, said, alone.stdout == "".join(lines) and alone.returncode == job.returncode == 0, not still)


def main() -> None:
    """Prints a row for each case, then how many were right and the same."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=6.0)
    options = parser.parse_args()
    outcomes = []
    for case in CASES:
        if options.names and case.name not in options.names:
            continue
        one = attached(case, options.seconds)
        outcomes.append(one)
        early = " (ended while it was watched)" if one.ended else ""
        told = f"{'right' if one.right else 'WRONG'} {'same' if one.same else 'DIFFERS'}{early}"
        print(f"{case.name:18} {case.kind:11} {told}")
        print(f"    {one.said.get('summary')}", flush=True)
        if not one.right:
            print(f"    {one.said.get('shares')} {one.said.get('facts')}")
    right, same = sum(one.right for one in outcomes), sum(one.same for one in outcomes)
    print(f"right {right} of {len(outcomes)}, outputs the same {same} of {len(outcomes)}")


if __name__ == "__main__":
    main()
