"""The end of a watched process: its uncaught exception, without the message, which may hold secrets."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from whystall.capture.stacks import is_library


def last_exception() -> str | None:
    """The type of the exception that ends the process, and the innermost line of the user's own; ``None`` without one.

    The interpreter keeps it for those who look after it was printed (`sys.last_type`).
    """
    kind = getattr(sys, "last_type", None)
    if not isinstance(kind, type):
        return None
    frames = traceback.extract_tb(getattr(sys, "last_traceback", None), limit=-200)
    own = next((frame for frame in reversed(frames) if not is_library(frame.filename)), None)
    return kind.__name__ if own is None else f"{kind.__name__} at {Path(own.filename).name}:{own.lineno}"
