"""Runs jobs whose fault is known on a GPU: plain, repaired and watched, one at a time while the next ones start.

python -m benchmarks.gpu.jobs FOLDER [--only NAME ...] [--out DIR] [--seconds S] [--limit S]

FOLDER holds ``truth*.toml`` and ``jobs/`` (`benchmarks/gpu/watched`). Results gather in
DIR/jobs.json, the run folders in DIR/NAME. After ``--limit`` seconds nothing more is started and what runs is ended.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

AT_ONCE = 5
STEPS_OF_RANKS = 12
PATIENCE_S, RANKS_PATIENCE_S = 200.0, 60.0


class Runner:
    """What runs, and until when."""

    def __init__(self, folder: Path, out: Path, seconds: float, limit: float) -> None:
        self._folder, self._out, self._seconds = folder, out, seconds
        self._end = time.monotonic() + limit
        self._lock = threading.Lock()
        self._scratch = Path(tempfile.mkdtemp())
        self.found: dict[str, dict[str, Any]] = {}

    def run(self, name: str, truth: dict[str, Any], kind: str) -> None:
        """One run of one job: ``plain``, ``cured``, ``watched`` or ``memory`` (watched with ``--memory``)."""
        left = self._end - time.monotonic()
        if left < self._seconds:
            return
        times = self._scratch / f"{name}-{kind}.json"
        seconds = self._seconds * (2 if kind in ("watched", "memory") else 1)
        environment = {
            "GPU_LOCK": str(self._scratch / "gpu"),
            **os.environ,
            "STEP_TIMES": str(times),
            "SECONDS": str(seconds),
            "OMP_NUM_THREADS": "4",
        }
        if kind == "cured":
            environment["CURED"] = "1"
        ranks = int(truth.get("ranks", 1))
        command = [sys.executable, f"{name}.py"]
        if ranks > 1:
            environment["STEPS"] = str(STEPS_OF_RANKS * (3 if kind == "watched" else 1))
            command = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port",
                       str(20000 + abs(hash((name, kind))) % 20000), f"{name}.py"]  # fmt: skip
            if kind in ("plain", "cured"):
                command.insert(0, sys.executable)
        if kind in ("watched", "memory"):
            folder = self._out / (name if kind == "watched" else f"{name}-memory")
            more = ["--memory"] if kind == "memory" else []
            command = [sys.executable, "-m", "whystall", "run", "-f", *more, "-o", str(folder), *command[ranks == 1 :]]
        began = time.monotonic()
        # All ranks wait for the device, not the first alone.
        with Path(environment.pop("GPU_LOCK")).open("w") if ranks > 1 else nullcontext() as lock:
            if lock is not None:
                fcntl.flock(lock, fcntl.LOCK_EX)
            told = self._told(command, environment, min(left, PATIENCE_S if ranks == 1 else RANKS_PATIENCE_S))
        told["wall_s"] = time.monotonic() - began
        if times.exists():
            told.update(json.loads(times.read_text()))
        with self._lock:
            self.found.setdefault(name, {"truth": truth})[kind] = told
            (self._out / "jobs.json").write_text(json.dumps(self.found, indent=1))

    def _told(self, command: list[str], environment: dict[str, str], limit: float) -> dict[str, Any]:
        """How a run ended, and the end of what it printed."""
        with subprocess.Popen(command, cwd=self._folder / "jobs", env=environment, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, start_new_session=True) as started:  # fmt: skip
            try:
                stdout, stderr = started.communicate(timeout=limit)
                code: int | str = started.returncode
            except subprocess.TimeoutExpired:
                os.killpg(started.pid, signal.SIGKILL)  # a session of this run's own, with all that it started
                stdout, stderr = started.communicate()
                code = "timeout"
        return {"rc": code, "stdout": stdout[-1500:], "stderr": stderr[-6000:]}


def main() -> None:
    """Runs the jobs and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("gpu-jobs"))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--limit", type=float, default=600.0)
    asked = parser.parse_args()
    asked.out = asked.out.resolve()
    asked.out.mkdir(parents=True, exist_ok=True)
    folder = asked.folder.resolve()
    truths: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("truth*.toml")):
        truths.update(tomllib.loads(path.read_text()))
    runner = Runner(folder, asked.out, asked.seconds, asked.limit)
    wanted = [(name, truth) for name, truth in truths.items() if not asked.only or name in asked.only]
    order = [(name, truth, kind) for name, truth in wanted for kind in ("watched", "plain", "cured")
             if kind != "cured" or truth["causes"]]  # fmt: skip
    order.sort(key=lambda one: one[1].get("ranks", 1))  # those of several ranks last
    order += [
        (name, truth, "memory") for name, truth in wanted if any(one.startswith("memory.") for one in truth["causes"])
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda one: runner.run(*one), order))
    for name, job in runner.found.items():
        plain, cured = (job.get(kind, {}).get("mean_s") for kind in ("plain", "cured"))
        gain = f"{plain / cured:5.2f}" if plain and cured else "    -"
        codes = {kind: job[kind]["rc"] for kind in job if kind != "truth"}
        report = asked.out / name / "report.json"
        said = (
            [(one["id"], one.get("severity")) for one in json.loads(report.read_text())["findings"]]
            if report.exists()
            else "?"
        )
        print(f"{name:24} {gain} {(plain or 0) * 1e3:8.2f} ms {job['truth']['causes'][:1]} {codes} {said}")


if __name__ == "__main__":
    main()
