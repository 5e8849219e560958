"""Real training jobs on this machine's CPU: the truth is measured, whystall and TraceML each watch a run."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from benchmarks.accuracy.expectation import Expectation
from benchmarks.accuracy.score import Mark, mark
from benchmarks.accuracy.verdicts import WHYSTALL, Said, read

JOBS = Path(__file__).resolve().parent / "jobs"
UNSTEADY_STEPS = 5
STEPS = 60
TIMEOUT_S = 240
QUIET_PERCENT = 15


@dataclass(frozen=True, slots=True)
class JobCase:
    """A script, the fault that is put in, and the causes that name it."""

    name: str
    script: str
    fault: str = ""
    causes: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()
    resists: tuple[str, ...] = ()
    ranks: int = 1
    rank: int | None = None
    quick: bool = False
    slows: bool = True
    """Whether the fault costs time (growing memory does not)."""
    link_mbit: int = 0
    """Megabits per second of the link between its processes; 0: as the machine has it."""

    def arguments(self, *, cured: bool = False, times: Path | None = None, steps: int = STEPS) -> list[str]:
        """The script's arguments."""
        found = ["--steps", str(steps), *(["--fault", self.fault] if self.fault else [])]
        return [*found, *(["--cured"] if cured else []), *(["--times", str(times)] if times else [])]

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The command that runs the script."""
        slow = self.link_mbit and "--cured" not in arguments
        return [*(behind(self.link_mbit) if slow else []), *launcher(self.ranks), str(JOBS / self.script), *arguments]

    @property
    def possible(self) -> bool:
        """Whether this machine can run it."""
        if not self.link_mbit:
            return True
        return subprocess.run([*behind(self.link_mbit), "true"], check=False, capture_output=True).returncode == 0


def launcher(ranks: int) -> list[str]:
    """Python, or torchrun for several ranks."""
    if ranks == 1:
        return [sys.executable]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]


def behind(mbit: int) -> list[str]:
    """What a command runs under to have a network of its own, in which it sends so many megabits a second to itself."""
    limit = f"tc qdisc add dev lo root tbf rate {mbit}mbit burst 128kb latency 2s"
    return ["unshare", "-rn", "sh", "-c", f'ip link set lo up && {limit} && exec "$@"', "sh"]


def crowded(ranks: int) -> tuple[str, ...]:
    """What is wrong with ranks that nothing else is wrong with: nothing, where each has a core."""
    return ("host.cpu-contention",) if ranks > len(os.sched_getaffinity(0)) else ()


OF_ONE_RANK = ("communication.straggler", "host.python", "host.gc", "input.rank-skew", "input.synchronous-loader")
"""Causes that would name a rank where none is to blame."""

CASES = (
    JobCase("images-healthy", "images.py", quick=True),
    JobCase("images-synchronous-sleep", "images.py", "synchronous-sleep", ("input.synchronous-loader",), quick=True),
    JobCase("images-synchronous-decode", "images.py", "synchronous-decode", ("input.synchronous-loader",)),
    JobCase("images-few-workers", "images.py", "few-workers", ("input.too-few-workers",), ("input.storage-bound",)),
    JobCase("images-busy-workers", "images.py", "busy-workers", ("input.cpu-bound",)),
    JobCase("images-slow-storage", "images.py", "slow-storage", ("input.storage-bound",), ("input.too-few-workers",)),
    JobCase("images-restarts", "images.py", "restarts", ("input.worker-restart",)),
    JobCase("images-heavy-tail", "images.py", "heavy-tail", ("input.heavy-tail",)),
    JobCase("images-many-tensors", "images.py", "many-tensors", ("input.collate",)),
    JobCase("images-cheap-inline", "images.py", "cheap-inline", resists=("input.synchronous-loader",)),
    JobCase("language-healthy", "language.py"),
    JobCase("language-python", "language.py", "python", ("host.python",), quick=True),
    JobCase("language-collections", "language.py", "collections", ("host.gc",)),
    JobCase("language-checkpoint", "language.py", "checkpoint", ("episodic.checkpoint",)),
    JobCase("language-logging", "language.py", "logging", ("episodic.logging",)),
    JobCase("language-evaluation", "language.py", "evaluation", ("episodic.evaluation",)),
    JobCase("language-attention", "language.py", "attention", ("compute.unfused-attention",)),
    JobCase("language-twice", "language.py", "twice", ("compute.redundant-work",)),
    JobCase("language-threads", "language.py", "threads", ("host.cpu-contention",)),
    JobCase("language-recompile", "language.py", "recompile", ("host.recompile",)),
    JobCase("language-lock", "language.py", "lock", ("host.gil",)),
    JobCase("language-growth", "language.py", "growth", ("memory.growth",), slows=False),
    JobCase("tabular-healthy", "tabular.py"),
    JobCase("tabular-optimizer", "tabular.py", "optimizer", ("compute.unfused-optimizer",)),
    JobCase("sequences-loop", "sequences.py", "loop", ("host.small-operators",)),
    JobCase("sequences-single", "sequences.py", "single", ("host.small-operators",)),
    JobCase("ranks-healthy", "ranks.py", ranks=2),
    JobCase("ranks-straggler", "ranks.py", "straggler", ("communication.straggler",), ranks=2, rank=1),
    JobCase("ranks-small-messages", "ranks.py", "small-messages", ("communication.small-messages",), ranks=2),
    *(
        JobCase(f"late-{ranks}-{fault}", "late.py", fault, (cause,), accepted, ranks=ranks, rank=ranks - 1)
        for ranks in (2, 4)
        for fault, cause, accepted in (
            ("data", "input.synchronous-loader", ("input.storage-bound",)),
            ("hook", "host.python", ()),
            ("long-hook", "host.python", ()),
            ("python", "host.python", ()),
            ("collections", "host.gc", ()),
            ("lengths", "communication.straggler", ("input.rank-skew",)),
        )
    ),
    *(
        JobCase(f"late-{ranks}-link", "late.py", "", ("communication.low-bandwidth",), ranks=ranks, link_mbit=200)
        for ranks in (2, 4)
    ),
    *(
        case
        for ranks in (2, 4)
        for case in (
            JobCase(
                f"late-{ranks}-rotating",
                "late.py",
                "rotating",
                crowded(ranks),
                resists=OF_ONE_RANK,
                ranks=ranks,
                slows=False,
            ),
            JobCase(
                f"late-{ranks}-healthy", "late.py", "", crowded(ranks), resists=OF_ONE_RANK, ranks=ranks, slows=False
            ),
        )
    ),
)
"""``growth`` costs no time: it is to be named all the same."""


def step_s(case: JobCase, *, cured: bool) -> float:
    """The mean of a run's steady steps in seconds."""
    with tempfile.TemporaryDirectory() as scratch:
        times = Path(scratch) / "times.json"
        subprocess.run(
            case.command(case.arguments(cured=cured, times=times)),
            check=True,
            capture_output=True,
            timeout=TIMEOUT_S,
            env=quiet(),
        )
        durations: list[float] = json.loads(times.read_text("utf-8"))
    return statistics.fmean(durations[UNSTEADY_STEPS:])


def quiet(**more: str) -> dict[str, str]:
    """The environment of a job: one thread per process unless the job says otherwise."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **more}


def wait_for_quiet(limit_s: float = 30.0) -> None:
    """Let others finish: on a machine that is busy with something else the contention would be the right answer."""
    until_s = time.monotonic() + limit_s
    while psutil.cpu_percent(interval=2) > QUIET_PERCENT and time.monotonic() < until_s:
        pass


def watched(case: JobCase, keep: Path | None = None) -> Said:
    """What ``whystall run`` says of a run, whose folder is kept if one is given."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = keep or Path(scratch) / "run"
        script = [str(JOBS / case.script), *case.arguments()]
        target = script if case.ranks == 1 else ["--", *case.command(case.arguments())]
        line = [*WHYSTALL, "run", "-q", "-o", str(folder), *target]
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, env=quiet())
        report = folder / "report.json"
        if not report.exists():
            return Said(None, (), failure=done.stderr.strip()[-300:] or f"exit code {done.returncode}")
        return read(json.loads(report.read_text("utf-8")))


def expectation(case: JobCase, gain: float | None) -> Expectation:
    """What should be said."""
    gains: Mapping[str, float | None] = dict.fromkeys(case.causes, gain if case.slows else None)
    return Expectation(case.name, gains, case.accepted, case.resists, case.rank)


@dataclass(frozen=True, slots=True)
class Judged:
    """A job's marks, one for each run that was watched, and what a peer called the job."""

    marks: list[Mark]
    peer: str = ""


def judge(
    case: JobCase,
    *,
    rounds: int,
    peer: Callable[[JobCase], str] | None = None,
    keep: Path | None = None,
    paired: bool = True,
) -> Judged:
    """A job's marks: its runs follow each other, since they need the machine's cores.

    Each round watches one run between two pairs of runs with and without the fault, so that the truth is measured on
    the machine as it was then. The true gain is the median over all pairs. The folders of the watched runs are left in
    ``keep``. Without pairs (``paired``) causes and ranks are judged, and no gains.
    """
    ratios, said = [], []
    timed = paired and bool(case.causes) and case.slows
    for number in range(rounds):
        wait_for_quiet()
        if timed:
            ratios.append(step_s(case, cured=False) / step_s(case, cured=True))
        said.append(watched(case, keep and keep / f"{case.name}-{number}"))
        if timed:
            cured_s = step_s(case, cured=True)
            ratios.append(step_s(case, cured=False) / cured_s)
    wanted = expectation(case, statistics.median(ratios) if ratios else None)
    return Judged([mark(wanted, each) for each in said], peer(case) if peer is not None else "")
