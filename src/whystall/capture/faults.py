"""Keeps failures of ours from the job: the part that failed is switched off and named once, at the end."""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Final, ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Returned = TypeVar("_Returned")
_OURS: Final = str(Path(__file__).parent.parent)
_PYTHONS: Final = str(Path(os.__file__).parent)
_INSTALLED: Final = re.compile(r"[/\\](site|dist)-packages[/\\]")
_CALLED: Final = frozenset({"whystall", "builtins", "torch", "numpy", "msgspec", *sys.stdlib_module_names})
"""The packages whose exceptions our code may meet."""
_WITHOUT_MESSAGE: Final = (
    AssertionError,
    EOFError,
    MemoryError,
    NotImplementedError,
    RecursionError,
    StopIteration,
    queue.Empty,
    queue.Full,
)
"""Those of them that are often raised without one."""


def is_the_jobs(error: BaseException) -> bool:
    """Whether an exception that struck amid code of ours is the job's: such an exception goes on to it.

    A handler of the job's signals raised it (a time limit by SIGALRM), its trace function did, or another of its
    threads had it raised in this one (``PyThreadState_SetAsyncExc``).
    """
    return signal_that_raised(error) is not None or _is_of_its_tracer(error) or _is_of_another_thread(error)


def _is_of_its_tracer(error: BaseException) -> bool:
    frames = list(_frames_in(error.__traceback__))
    codes = {code for frame in frames if frame.f_trace is not None for code in _codes(frame.f_trace)}
    return any(frame.f_code in codes for frame in frames)


def _is_of_another_thread(error: BaseException) -> bool:
    """Whether nothing in our code raised it: no package that we call has its class, or it has no message.

    Python makes an exception for another thread without arguments. An exception of an object of the job's, as we read
    it, has a frame of the job's.
    """
    if not all(_is_of_no_job(code.co_filename) for code in _codes_in(error.__traceback__)):
        return False
    package = type(error).__module__.partition(".")[0]
    return package not in _CALLED or (not error.args and not isinstance(error, _WITHOUT_MESSAGE))


def signal_that_raised(error: BaseException) -> int | None:
    """The signal in whose handler, one of the job's, an exception was raised; ``None`` where there is no such one."""
    if threading.get_ident() != threading.main_thread().ident:
        return None
    raised_in = set(_codes_in(error.__traceback__))
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if callable(handler) and any(code in raised_in for code in _codes(handler)):
            return int(number)
    return None


def _is_of_no_job(file: str) -> bool:
    """Whether a file is ours, torch's or Python's own."""
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    if file.startswith((_OURS, "<frozen ")) or (torch is not None and file.startswith(str(Path(torch).parent))):
        return True
    return file.startswith(_PYTHONS) and _INSTALLED.search(file) is None


def _codes(handler: object) -> Iterator[CodeType]:
    """The code that a handler runs: a function's, a method's, a partial's, an object's ``__call__``."""
    for one in (handler, getattr(handler, "func", None), vars(type(handler)).get("__call__")):
        code = getattr(getattr(one, "__func__", one), "__code__", None)
        if isinstance(code, CodeType):
            yield code


def _codes_in(traceback: TracebackType | None) -> Iterator[CodeType]:
    return (frame.f_code for frame in _frames_in(traceback))


def _frames_in(traceback: TracebackType | None) -> Iterator[FrameType]:
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next


class suppress(contextlib.suppress):  # noqa: N801 - it stands where contextlib's does
    """Suppresses exceptions of ours; those of the job's signal handlers go on."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Whether the exception ends here."""
        return bool(super().__exit__(kind, error, traceback)) and not (error is not None and is_the_jobs(error))


class Faults:
    """The parts of the capture that failed in this process, by name, with the first reason of each."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def note(self, part: str, error: BaseException) -> None:
        """Remembers the first failure of a part."""
        self.reasons.setdefault(part, f"{type(error).__name__}: {error}".splitlines()[0][:200])

    def guard(self, part: str, function: Callable[_Arguments, _Returned]) -> Callable[_Arguments, _Returned | None]:
        """``function`` without further calls after a first failure; it raises only exceptions of the job's."""

        @functools.wraps(function)
        def guarded(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Returned | None:
            if part in self.reasons:
                return None
            try:
                return function(*args, **kwargs)
            except Exception as error:
                if is_the_jobs(error):
                    raise
                self.note(part, error)
                return None

        return guarded

    def sentence(self) -> str | None:
        """One line that names every part that failed, or ``None``."""
        if not self.reasons:
            return None
        parts = "; ".join(f"{part} ({reason})" for part, reason in self.reasons.items())
        return f"whystall: the job was not affected, but this was not recorded: {parts}"

    def report(self) -> None:
        """Prints the sentence, if there is one, to the job's standard error."""
        sentence = self.sentence()
        if sentence is not None and sys.stderr is not None:  # print would take standard output instead
            with contextlib.suppress(OSError, ValueError):  # a closed stream: no reader is left
                print(sentence, file=sys.stderr, flush=True)  # noqa: T201 - the one thing we say in a user's job
