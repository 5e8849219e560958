"""A probe of several ranks: a process for each on this CPU, and their joint result.

A batch fits where it fits on every rank, holds the fullest rank's memory, and is as fast as the slowest. A rank that
dies or hangs leaves the others waiting for it: they are ended, and the sentence names the rank.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

import msgspec
from msgspec.structs import replace

from whystall.json_text import parse_json
from whystall.probe.batch.results import Answer, BatchRun, Order

LATE: Final = "timed out"
_EVERY_S: Final = 0.05
_GRACE_S: Final = 10.0  # for ranks to end by themselves once one has ended early
_LONGEST_TAIL: Final = 300


@dataclass(slots=True)
class RankEnd:
    """One rank's answers, its end, and its place in the order of ends; ``code`` is ``None`` for a killed rank."""

    rank: int
    answers: list[Answer] = field(default_factory=list)
    code: int | None = None
    words: str = ""
    place: int = 0


def run_ranks(order: Order, ranks: int, timeout_s: float) -> tuple[list[RankEnd], bool]:
    """The answers of each of ``ranks`` ranks, and whether time ran out."""
    with tempfile.TemporaryDirectory(prefix="whystall-ranks-") as folder, ExitStack() as files:
        begun = [_start(order, rank, ranks, Path(folder) / "store", files) for rank in range(ranks)]
        ends = [RankEnd(rank) for rank in range(ranks)]
        try:
            late = _wait(begun, ends, time.monotonic() + timeout_s)
        finally:
            for process, _, _ in begun:
                process.kill()
                process.wait()
        for end, (_, answers, said) in zip(ends, begun, strict=True):
            answers.seek(0)
            end.answers = [parse_json(line, type=Answer) for line in answers.read().splitlines() if line.endswith(b"}")]
            said.seek(0)
            words = said.read().decode("utf-8", "replace").strip().splitlines()
            end.words = words[-1][-_LONGEST_TAIL:] if words else ""
    return ends, late


def _start(
    order: Order, rank: int, ranks: int, store: Path, files: ExitStack
) -> tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]:
    """A rank's process, with the files that it answers and writes to; ranks find each other by a file."""
    answers, said, asked = (files.enter_context(tempfile.TemporaryFile()) for _ in range(3))  # noqa: SIM115
    asked.write(msgspec.json.encode(order))
    asked.seek(0)
    process = subprocess.Popen(  # noqa: S603 - this very interpreter
        [sys.executable, "-m", "whystall.probe.batch.worker", str(answers.fileno()), str(rank), str(ranks), str(store)],
        stdin=asked,
        stdout=said,
        stderr=said,
        pass_fds=(answers.fileno(),),
        env={"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": str(max(_cores() // ranks, 1)), **os.environ},
    )
    return process, answers, said


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _wait(
    begun: Sequence[tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]], ends: Sequence[RankEnd], until: float
) -> bool:
    """Waits for all ranks, or, once one has ended, a little for the others; whether time ran out before that."""
    first_ended: float | None = None
    place = 0
    while any(end.code is None for end in ends):
        for end, (process, _, _) in zip(ends, begun, strict=True):
            if end.code is None and process.poll() is not None:
                end.code, end.place, place = process.returncode, place, place + 1
                first_ended = first_ended or time.monotonic()
        now = time.monotonic()
        if first_ended is not None and now > first_ended + _GRACE_S:
            return False
        if now > until:
            return first_ended is None
        time.sleep(_EVERY_S)
    return False


def agreed(ends: Sequence[RankEnd], *, late: bool) -> tuple[list[Answer], str | None]:
    """The answers of all ranks as one; for a first batch that did not run the last words of the rank at fault.

    ``None`` beside an answer; a rank's number precedes its words.
    """
    ran = [[one.ran for one in end.answers if one.ran is not None] for end in ends]
    together = [Answer(ran=joined(runs)) for runs in zip(*ran, strict=False)]
    if together:
        return together, None
    absent = next((end for end in sorted(ends, key=lambda end: end.place) if end.code is not None), None)
    if late or absent is None:
        waiting = [str(end.rank) for end in ends if not end.answers]
        return [], f"{LATE}: {'rank' if len(waiting) == 1 else 'ranks'} {', '.join(waiting)} did not answer"
    # A rank that lost a rank that is gone reports an error of its own: a rank that ended for a reason counts first.
    told = [end for end in ends if end.answers and end.answers[0].out_of_memory is not None]
    told += [end for end in ends if end.code is not None and end.code < 0]
    fault = min(told, key=lambda end: end.place) if told else absent
    first = fault.answers[0] if fault.answers else None
    if first is None or first.ran is not None:
        return [], None
    named = {
        name: f"rank {fault.rank}: {text}" for name in ("out_of_memory", "failed") if (text := getattr(first, name))
    }
    return [replace(first, **named)], None


def at_fault(ends: Sequence[RankEnd]) -> RankEnd:
    """The rank that ended first without an answer, by a signal before all else."""
    silent = [end for end in ends if not end.answers and end.code is not None] or list(ends)
    return min(silent, key=lambda end: ((end.code or 0) >= 0, end.place))


def joined(runs: Sequence[BatchRun]) -> BatchRun:
    """A batch on several ranks: held by the fullest, as fast as the slowest."""
    return BatchRun(
        batch=runs[0].batch,
        held_bytes=max(one.held_bytes for one in runs),
        steps=min(one.steps for one in runs),
        step_ns=max(one.step_ns for one in runs),
        fastest_ns=max(one.fastest_ns for one in runs),
        slowest_ns=max(one.slowest_ns for one in runs),
        ranks=len(runs),
    )
