"""Probes of the largest batch that is predicted to fit, each in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from threading import Timer
from typing import Final

import msgspec
from msgspec.structs import replace

from whystall.errors import InputError, UsageError
from whystall.json_text import parse_json
from whystall.model.prediction.request import Request
from whystall.model.prediction.results import Prediction
from whystall.probe.batch.ranks import LATE, agreed, at_fault, run_ranks
from whystall.probe.batch.results import Answer, Attempt, BatchRun, Order, Outcome, Probed
from whystall.probe.batch.search import curve_batches, knee_of, next_batch, predicted_bytes

TIMEOUT_S: Final = 300.0
CURVE_S: Final = 60.0
_LONGEST_TAIL: Final = 300
_STRATEGIES: Final = ("ddp", "fsdp2")

Progress = Callable[[str], None]


def probe_batches(
    found: Prediction, *, timeout_s: float = TIMEOUT_S, curve_s: float = CURVE_S, progress: Progress = lambda _: None
) -> Probed:
    """Runs the largest batch of a prediction, and at most two others.

    A probe that fits continues with halves of its batch, down to one sample. Ranks are a process each. Raises
    ``UsageError`` for ranks that share the work otherwise than by DDP or FSDP2, ``InputError`` where the model fails
    for another reason than memory.
    """
    request = found.request
    _check_ranks(request)
    if request.ranks > 1 and not request.on_cpu:
        return Probed(because="ranks are run on a CPU alone: the prediction holds for each of them")
    if not found.batches or request.batch is None or not any(one.fits for one in found.batches):
        return Probed(because="by prediction not even one sample fits")
    room = found.batches[0].peak_bytes + found.batches[0].spare_bytes
    attempts: list[Attempt] = []
    curve: tuple[BatchRun, ...] = ()
    batch: int | None = request.batch
    while batch is not None:
        progress(f"probing a batch of {batch}")
        order = Order(request=replace(request, batch=None), batches=curve_batches(batch), curve_s=curve_s)
        answers, ended = _run(order, timeout_s) if request.ranks == 1 else _run_ranks(order, timeout_s)
        if answers and answers[0].absent is not None:
            return Probed(because=answers[0].absent)
        attempt = _attempt(order, answers, ended, predicted_bytes(found.batches, batch), request.limit_bytes)
        attempts.append(attempt)
        if attempt.fits:
            curve = tuple(sorted((one.ran for one in answers if one.ran), key=lambda one: one.batch))
        batch = next_batch(attempts, found.batches, room, divides=request.effective_batch)
    return Probed(attempts=tuple(attempts), curve=curve, knee=knee_of(curve))


def _attempt(order: Order, answers: list[Answer], ended: str, predicted: int, limit: int | None) -> Attempt:
    """The outcome of the first batch of an order. Raises ``InputError`` where the model fails."""
    first = answers[0] if answers else Answer()
    if first.failed is not None:
        raise InputError(f"{order.request.target} failed with a batch of {order.batches[0]}: {first.failed}")
    outcome: Outcome = "fits"
    said: str | None = None
    held: int | None = None
    if first.ran is not None:
        held = first.ran.held_bytes
        outcome = "over the limit" if limit is not None and held > limit else "fits"
    elif first.out_of_memory is not None:
        outcome, said = "out of memory", first.out_of_memory
    else:
        outcome, said = _death(ended)
    return Attempt(batch=order.batches[0], predicted_bytes=predicted, outcome=outcome, held_bytes=held, said=said)


def _check_ranks(request: Request) -> None:
    if request.devices > request.ranks or (request.ranks > 1 and request.strategy not in _STRATEGIES):
        raise UsageError("a probe runs ranks of --strategy ddp or fsdp2: leave --probe out for what else is predicted")


def _run_ranks(order: Order, timeout_s: float) -> tuple[list[Answer], str]:
    """The same for several ranks: the joint answers, and for a first batch that did not run the kind of end."""
    ends, late = run_ranks(order, order.request.ranks, timeout_s)
    answers, ended = agreed(ends, late=late)
    if answers or ended is not None:
        return answers, ended or ""
    fault = at_fault(ends)
    kind, colon, words = _ending(fault.code or 0, fault.words).partition(": ")
    return [], f"{kind} of rank {fault.rank}{colon}{words}"


def _death(ended: str) -> tuple[Outcome, str | None]:
    if ended.startswith(LATE):
        return "timed out", ended.partition(": ")[2] or None
    return ("killed" if ended.startswith("SIGKILL") else "ended"), ended


def _run(order: Order, timeout_s: float) -> tuple[list[Answer], str]:
    """The answers of one process, and how it ended: by a signal or code with its last words, or timed out."""
    ours, theirs = os.pipe()
    late: list[bool] = []
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(  # noqa: S603 - this very interpreter
            [sys.executable, "-m", "whystall.probe.batch.worker", str(theirs)],
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            pass_fds=(theirs,),
        )
        os.close(theirs)

        def end() -> None:
            late.append(True)
            process.kill()

        timer = Timer(timeout_s, end)
        timer.start()
        try:
            process.communicate(msgspec.json.encode(order))
            with os.fdopen(ours, "rb") as answers:
                lines = answers.read().splitlines()
        finally:
            timer.cancel()
            process.kill()
            process.wait()
        said.seek(0)
        words = said.read().decode("utf-8", "replace").strip().splitlines()
    found = [parse_json(line, type=Answer) for line in lines if line.endswith(b"}")]
    return found, LATE if late else _ending(process.returncode, words[-1][-_LONGEST_TAIL:] if words else "")


def _ending(code: int, words: str) -> str:
    tail = f": {words}" if words else ""
    if code >= 0:
        return f"exit code {code}{tail}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"{name}{tail}"
