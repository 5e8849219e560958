"""The other side of the worker: simulated steps on demand, and a plain sentence where one ends its interpreter."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from os import close, fdopen, pipe
from types import TracebackType
from typing import IO, BinaryIO, Self, cast

import msgspec

from whystall.errors import InputError, UsageError
from whystall.model.prediction.frames import Answer, read_frame, write_frame
from whystall.model.prediction.outcome import Simulated
from whystall.model.prediction.request import Request

_LONGEST_TAIL = 300


class Simulator:
    """A process that simulates steps, started at the first request and again after one that ended it.

    ``detail`` receives the output of ``-v``: tracebacks of the user's own code.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: BinaryIO | None = None
        self._said: IO[bytes] | None = None
        self.trace = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, request: Request) -> Simulated:
        """The simulated step. Raises ``InputError`` or ``UsageError`` with the reason."""
        process, answers = self._started()
        try:
            write_frame(cast("BinaryIO", process.stdin), msgspec.msgpack.encode(request))
            frame = read_frame(answers)
        except BrokenPipeError:
            frame = None
        if frame is None:
            raise InputError(self._ended(request))
        answer = msgspec.msgpack.decode(frame, type=Answer)
        self.trace = answer.trace
        if answer.outcome is not None:
            return answer.outcome
        kind = UsageError if answer.exit_code == UsageError.exit_code else InputError
        said = answer.error or "the simulation gave nothing"
        raise kind(f"{request.target} failed: {said}" if answer.trace else said)

    def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is not None:
            if process.stdin is not None:
                process.stdin.close()
            process.kill()
            process.wait()
        for stream in (self._answers, self._said):
            if stream is not None:
                stream.close()
        self._answers = self._said = None

    def _started(self) -> tuple[subprocess.Popen[bytes], BinaryIO]:
        if self._process is None or self._answers is None:
            ours, theirs = pipe()
            self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process that writes to it
            self._process = subprocess.Popen(  # noqa: S603 - this very interpreter
                [sys.executable, "-m", "whystall.model.prediction.worker", str(theirs)],
                stdin=subprocess.PIPE,
                stdout=self._said,
                stderr=self._said,
                pass_fds=(theirs,),
            )
            close(theirs)
            self._answers = fdopen(ours, "rb")
        return self._process, self._answers

    def _ended(self, request: Request) -> str:
        """A sentence on a process that ended by itself."""
        process, said = self._process, self._said
        code = 0 if process is None else process.wait()
        tail = ""
        if said is not None:
            said.seek(0)
            lines = said.read().decode("utf-8", "replace").strip().splitlines()
            tail = lines[-1][-_LONGEST_TAIL:] if lines else ""
        self.close()
        how = f"by {_signal(-code)}" if code < 0 else f"with exit code {code}"
        return f"the simulation of {request.target} ended its interpreter {how}" + (f": {tail}" if tail else "")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
