"""Whether a job that becomes slow while it runs is told so, and why, within a minute.

    python -m benchmarks.slowed [--rounds 1] [--only NAME ...] [--after 25] [--seconds 100]
    python -m benchmarks.slowed --healthy 360 [--only NAME ...]

Every job runs under ``whystall run``; ``whystall watch`` looks at it every two seconds from another process, as a user
would. Counted from the instant that the job wrote down: when "slower" was said, and when the verdict was one of the
causes that are true of the fault; then the job is ended. ``--healthy`` runs the same jobs for so many seconds each
without their faults: they may not be called slower, unless with the cores that other programs took, and no cause may be
named but such programs. How often a job is said to take longer in computing alone, as on a slower machine, is counted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

WITHIN_S: Final = 60.0
OF_OTHERS: Final = "; other programs use"
"""What is said of a job that is slower since others took its cores: no fault of its own, and no false alarm."""
CAUSE: Final = re.compile(r"^so far: .*\[([a-z]+\.[a-z-]+)\]$")
HERE = Path(__file__).parent
# What may be named for a fault: chosen by what the job does, before any of it was watched.
TRUE: Final = {
    "storage": {"input.storage-bound", "input.too-few-workers"},
    "decoding": {"input.cpu-bound", "input.too-few-workers"},
    "collections": {"host.gc"},
    "checkpoints": {"episodic.checkpoint"},
    "listener": {"host.gil", "host.python", "host.cpu-contention"},
    "tokens": {"host.python"},
    "history": {"memory.growth"},
    "recompiled": {"host.recompile"},
    "rank": {"communication.straggler", "host.python"},
    "healthy": set(),
}


class Told:
    """What ``whystall watch`` printed, each line with its instant."""

    def __init__(self, process: subprocess.Popen[str], causes: set[str], onset: Path, named: Path) -> None:
        """``named`` is made once one of the causes was told after the onset."""
        self.lines: list[tuple[float, str]] = []
        self._process = process
        self._causes = causes
        self._onset, self._named = onset, named
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self.lines.append((time.time(), line.rstrip()))
            if self._onset.exists() and any(f"[{cause}]" in line for cause in self._causes):
                self._named.touch()

    def close(self) -> None:
        """Waits for the last line."""
        self._thread.join(timeout=20)


def watched(name: str, folder: Path, options: argparse.Namespace) -> tuple[float | None, Told]:
    """Runs the job and a watch beside it; the instant of the fault, and what was told."""
    onset, over, run = folder / "onset", folder / "over", folder / "run"
    after, seconds = (float("inf"), options.healthy) if options.healthy else (options.after, options.seconds)
    words = [str(HERE / "jobs.py"), name, "--onset", str(onset), "--over", str(over)]
    words += ["--after", str(after), "--seconds", str(seconds)]
    if name == "rank":
        words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", *words]
    whystall = [sys.executable, "-m", "whystall"]
    always = ["--always"] if options.always else []
    job = subprocess.Popen(
        [*whystall, "run", "-q", *always, "-o", str(run), *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while not (run / "run.json").exists():
        time.sleep(0.2)
        if job.poll() is not None:
            raise RuntimeError(f"{name}: ended with {job.returncode} before it began")
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    watch = subprocess.Popen(
        [*whystall, "watch", str(run), "--every", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    told = Told(watch, set() if options.healthy else TRUE[name], onset, over)
    job.wait()
    watch.wait(timeout=60)
    told.close()
    return (json.loads(onset.read_text()) if onset.exists() else None), told


def first_after(lines: list[tuple[float, str]], onset: float, *words: str) -> float | None:
    """Seconds from the onset to the first line that has one of the words."""
    for at, line in lines:
        if at >= onset and any(word in line for word in words):
            return at - onset
    return None


def judged(name: str, folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """One run, and what it showed."""
    onset, told = watched(name, folder, options)
    if onset is None:
        alarms = [line for _, line in told.lines if line.startswith("slower")]
        beside = [line for line in alarms if OF_OTHERS in line]
        causes = sorted({one for _, line in told.lines for one in CAUSE.findall(line)} - {"host.cpu-contention"})
        return {
            "job": name,
            "right": len(alarms) == len(beside) and not causes,
            "beside_others": len(beside),
            "in_computing": sum(line.startswith("longer") for _, line in told.lines),
            "named": causes,
            "lines": [line for _, line in told.lines if not line.startswith("step")],
        }
    since = [(round(at - onset, 1), line) for at, line in told.lines if not line.startswith("step")]
    right = first_after(told.lines, onset, *(f"[{cause}]" for cause in TRUE[name]))
    return {
        "job": name,
        "slower_s": first_after(told.lines, onset, "slower:", "longer:"),
        "named_s": right,
        "right": right is not None and right <= WITHIN_S,
        "lines": since,
    }


def summary(results: list[dict[str, object]]) -> str:
    """How many faults were named in time, and how many healthy jobs were called slower."""
    faulty = [result for result in results if "named_s" in result]
    named = [float(result["named_s"]) for result in faulty if result["right"]]  # type: ignore[arg-type]
    alarms = sum(not result["right"] for result in results if "named_s" not in result)
    text = f"{len(named)} of {len(faulty)} named within {WITHIN_S:g} s"
    if named:
        text += f", {statistics.median(named):.0f} s in the median, {max(named):.0f} s at most"
    return f"{text}; {alarms} of {len(results) - len(faulty)} healthy runs called slower, or told a cause"


def main() -> None:
    """Runs what is asked for, and prints a line for each run and the sums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=sorted(TRUE), default=sorted(TRUE))
    parser.add_argument("--after", type=float, default=25.0)
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--healthy", type=float, metavar="S", help="so many seconds of each job, without its fault")
    parser.add_argument("--always", action="store_true", help="the job runs with --always")
    parser.add_argument("--verbose", action="store_true", help="print what was told")
    options = parser.parse_args()
    results = []
    for _ in range(options.rounds):
        for name in options.only:
            with tempfile.TemporaryDirectory() as folder:
                result = judged(name, Path(folder), options)
            results.append(result)
            print({key: value for key, value in result.items() if key != "lines"}, flush=True)
            if options.verbose or not result["right"]:
                for line in result["lines"]:  # type: ignore[attr-defined]
                    print("   ", line, flush=True)
    print(summary(results))


if __name__ == "__main__":
    main()
