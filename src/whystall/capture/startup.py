"""Runs once a watched Python has imported torch: opens the session, and observes children that train."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from whystall.capture.session import Session

from whystall.capture.config import VARIABLE, decode
from whystall.capture.faults import Faults
from whystall.capture.heard_functions import hear

_session: Session | None = None
_forks_heard: list[ModuleType] = []


def begin(stamps: tuple[int, int | None, int | None]) -> None:
    """Watches this process, which has imported torch, if it was launched by whystall.

    ``stamps`` are those of `whystall.capture.job_clock.Stamps`.
    """
    if os.environ.get(VARIABLE) and "torch" in sys.modules:
        _open(sys.modules["torch"], stamps)


def session() -> Session | None:
    """The session of this process, if it is watched."""
    return _session


def _open(torch: ModuleType, stamps: tuple[int, int | None, int | None] | None = None) -> None:
    global _session  # noqa: PLW0603 - a process has one session, as it has one torch
    faults = Faults()

    def opened() -> Session:
        from whystall.capture.job_clock import Stamps  # noqa: PLC0415 - only processes that import torch need them
        from whystall.capture.session import Session  # noqa: PLC0415 - likewise

        created = Session(torch, decode(os.environ[VARIABLE]), Stamps(*stamps) if stamps is not None else None)
        created.open()
        return created

    _session = faults.guard("start of the capture", opened)()
    faults.report()
    if not _forks_heard:
        _forks_heard.append(torch)
        os.register_at_fork(after_in_child=lambda: _watch_if_it_joins(torch))


_ends_hearing: list[Callable[[], None]] = []


def _watch_if_it_joins(torch: ModuleType) -> None:
    """In a forked child, a loader's worker as a rule: it is watched once it joins others as a rank of its own."""
    distributed = getattr(torch, "distributed", None)
    join = getattr(distributed, "init_process_group", None)
    if distributed is None or join is None or _ends_hearing:
        return

    def joined(_result: object) -> None:
        if distributed.is_initialized() and _ends_hearing:
            _ends_hearing.pop()()
            _open(torch)

    heard = Faults().guard("forked ranks", hear)(join, lambda *_: None, joined)
    if heard is not None:
        _ends_hearing.append(heard)
