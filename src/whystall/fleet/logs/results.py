"""The contents taken from a communication log: numbers and kinds alone, never a text of the log.

Logs hold environment variables, command lines and names of hosts beside their numbers. No field here has room for them:
texts are kinds from the table of conventions, and sentences of whystall's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Format = Literal["nccl-tests", "NCCL inspector", "NCCL RAS", "DeepSpeed comms log", "PyTorch traces"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommRow:
    """One kind of collective at one size in groups of one size.

    ``bytes`` is S by the table of conventions. ``time_ns`` is the mean of one collective: as logged, or without waiting
    where ``without_waiting``. ``printed_bus_bytes_per_s`` is the log's own number, ``bus_bytes_per_s`` the corrected
    one. ``slowest_process`` is the slowest process's mean time over that of all.
    """

    collective: str | None
    bytes: int | None
    ranks: int | None
    count: int
    time_ns: float
    algorithm_bytes_per_s: float | None
    bus_bytes_per_s: float | None
    printed_bus_bytes_per_s: float | None = None
    slowest_process: float | None = None
    without_waiting: bool = False
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWait:
    """How long one rank of a communicator waited in collectives that all its ranks logged.

    ``transfer_ns`` is the shortest time over ranks of each, ``wait_ns`` the rank's own time less that. Traces have
    instants: there the transfer lasts from the last rank's arrival until the first is done, and the wait from the
    rank's arrival until the last one's. ``last`` counts the collectives to which the rank came last, ``decided`` those
    with a last rank. ``kept_waiting_ns`` is the time that even the last but one waited for it. ``stands_out`` is true
    where it comes last more often than chance would have it (a binomial test, 1 % over all ranks of the communicator)
    and costs 2 % of the time.
    """

    communicator: int
    rank: int
    collectives: int
    wait_ns: int
    transfer_ns: int
    last: int
    decided: int
    kept_waiting_ns: int
    stands_out: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """A rank that launched fewer collectives of a kind than another of its communicator.

    ``moved``: whether its count rose since an earlier answer; ``None`` where there was none.
    """

    communicator: int
    collective: str
    rank: int
    launched: int
    most_launched: int
    moved: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A rank of a communicator (or a process) that did not answer."""

    communicator: int | None
    rank: int | None
    dead: bool
    process: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommLog:
    """The content of logs of one format. Communicators are numbered in the order in which they first come."""

    format: Format
    files: int
    rows: tuple[CommRow, ...] = ()
    waits: tuple[RankWait, ...] = ()
    behind: tuple[Behind, ...] = ()
    missing: tuple[Missing, ...] = ()
    communicators: int | None = None
    notes: tuple[str, ...] = field(default=())
