"""The exceptions that whystall raises on purpose; each carries the exit code that the command line ends with.

WhystallError (1)
├── UsageError (2)      what was asked for makes no sense: an unknown format, an output that exists
└── InputError (3)      what was given cannot be read: no such file, no trace, no permission
"""

from __future__ import annotations

from typing import ClassVar

__all__ = ["InputError", "UsageError", "WhystallError"]


class WhystallError(Exception):
    """An expected failure whose message is one plain sentence for the user."""

    exit_code: ClassVar[int] = 1


class UsageError(WhystallError):
    """The request cannot be carried out as it was put."""

    exit_code: ClassVar[int] = 2


class InputError(WhystallError):
    """The input cannot be read."""

    exit_code: ClassVar[int] = 3
