"""Keeps failures of ours from the job: the part that failed is switched off and named once, at the end."""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, TracebackType
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Returned = TypeVar("_Returned")


def is_the_jobs(error: BaseException) -> bool:
    """Whether a handler of the job's signals raised an exception: it may be called while code of ours runs.

    A time limit (SIGALRM) works so. Such an exception goes on to the job.
    """
    return signal_that_raised(error) is not None


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


def _codes(handler: object) -> Iterator[CodeType]:
    """The code that a handler runs: a function's, a method's, a partial's, an object's ``__call__``."""
    for one in (handler, getattr(handler, "func", None), vars(type(handler)).get("__call__")):
        code = getattr(getattr(one, "__func__", one), "__code__", None)
        if isinstance(code, CodeType):
            yield code


def _codes_in(traceback: TracebackType | None) -> Iterator[CodeType]:
    while traceback is not None:
        yield traceback.tb_frame.f_code
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
