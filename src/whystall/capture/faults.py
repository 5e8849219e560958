"""Keeps failures of ours from the job: the part that failed is switched off and named once, at the end."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Returned = TypeVar("_Returned")


class Faults:
    """The parts of the capture that failed in this process, by name, with the first reason of each."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def note(self, part: str, error: BaseException) -> None:
        """Remembers the first failure of a part."""
        self.reasons.setdefault(part, f"{type(error).__name__}: {error}".splitlines()[0][:200])

    def guard(self, part: str, function: Callable[_Arguments, _Returned]) -> Callable[_Arguments, _Returned | None]:
        """``function``, which after a first failure is not called again; it never raises."""

        @functools.wraps(function)
        def guarded(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Returned | None:
            if part in self.reasons:
                return None
            try:
                return function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - whatever it is, the job goes on
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
        if sentence is not None:
            with contextlib.suppress(OSError, ValueError):  # a closed stream: nobody is left to tell
                print(sentence, file=sys.stderr, flush=True)  # noqa: T201 - the one thing we say in a user's job
