"""Where the main thread is, seen from beside it, and calls to make on it once.

No signal is taken from the job: a fatal one stays fatal.
"""

from __future__ import annotations

import selectors
import sys
import threading
from collections.abc import Callable
from typing import Final

# The standard library's own files in which a thread waits for a lock or for I/O: calls on it are delayed there.
_WAITING: Final = frozenset({threading.__file__, selectors.__file__})


def waits(thread: threading.Thread) -> bool:
    """Whether a thread waits in Python's own ``join``, ``get`` or ``select``, or is not to be found."""
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - the only way to see where another thread is
    return frame is None or frame.f_code.co_filename in _WAITING


def once(call: Callable[[], object]) -> Callable[[], None]:
    """A call that acts only the first time, from any caller."""
    left = [call]

    def called() -> None:
        try:
            first = left.pop()
        except IndexError:
            return
        first()

    return called
