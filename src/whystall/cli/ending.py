"""Ends this process by the signal that ended the job.

A shell continues its loop after a program that handled Ctrl-C, and ends it after one that died of it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from typing import Final

SIGNALLED: Final = 128
"""A shell's exit code for a process that a signal ended is this plus the signal's number."""


def die_of(number: int) -> int:
    """Ends this process by a signal, without a core of its own; the exit code for one that lives on."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    with contextlib.suppress(OSError, ValueError):  # signals whose action cannot be set
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return SIGNALLED + number
