"""Errors of code that the user named on the command line."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from whystall.errors import InputError, WhystallError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from whystall.cli.console import Console


@contextmanager
def users_own_errors(target: str, console: Console) -> Iterator[None]:
    """Reports that the user's own target failed; ``-v`` shows where."""
    try:
        yield
    except WhystallError:
        raise
    except Exception as error:
        import traceback

        console.detail(traceback.format_exc())
        raise InputError(f"{target} failed: {type(error).__name__}: {error}") from error
