"""A diagnosis of a hanging job from its dumps: the ranks at fault, the operation, and open questions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from whystall.vocabulary.frames import Frame

__all__ = ["Hang", "Hangs", "Kind", "RankCall", "Wait"]


class Kind(StrEnum):
    """How an operation of several ranks fails to end."""

    MISSING_ENTER = "missing enter"
    """Some ranks wait in it, others never called it."""
    LATE_ENTER = "late enter"
    """All called it, some much later than the others, or their devices have not begun it."""
    MISMATCH = "mismatch"
    """Ranks called different operations, sizes or types under the same number."""
    MISSING_EXIT = "missing exit"
    """All entered alike, and some did not come out of it."""
    DIFFERENT_ORDER = "different order"
    """Ranks wait for each other in several groups: each entered another one first."""
    UNKNOWN = "unknown"
    """Some wait, and the dumps of the ranks that they wait for are missing."""


class Wait(StrEnum):
    """Why a rank's call differs from that of the others."""

    LEFT_OUT = "left out"
    """Its call comes right after the others' call: it left theirs out."""
    EXTRA = "extra"
    """The others' call comes right after its own: its own is one too many."""


@dataclass(frozen=True, slots=True)
class RankCall:
    """One rank's call. Sizes are elements per dimension of its inputs."""

    rank: int
    sequence: int
    operation: str
    sizes: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]
    created_ns: int | None
    place: Frame | None


@dataclass(frozen=True, slots=True)
class Hang:
    """The first operation of a process group that does not come to its end."""

    kind: Kind
    group: str
    description: str
    members: tuple[int, ...]
    sequence: int
    """The first bad sequence number, as the recorder counts, or the place in the group's order where ``by_order``."""
    by_order: bool
    operation: str
    """The operation of the waiting ranks (for a mismatch: of most ranks)."""
    ranks: tuple[int, ...]
    """The ranks at fault; empty where no rank differs from the others."""
    waiting: tuple[int, ...]
    """The ranks inside the operation."""
    call: RankCall | None
    """The operation as called by one of the ranks that are not at fault."""
    others: tuple[RankCall, ...]
    """The calls of the ranks at fault in its place; for those that never came, their last call in this group."""
    undumped: tuple[int, ...]
    """Members without a dump."""
    late_ns: int | None = None
    """The delay of the ranks at fault after the others, beyond their usual one; nanoseconds."""
    waited_ns: int | None = None
    """The least that the first to enter has waited, up to the latest time in any dump; nanoseconds."""
    differs: str | None = None
    """The difference in a mismatch: "operation", "size" or "type"."""
    shift: Wait | None = None
    could_be: str | None = None
    """Another explanation that the dumps allow."""
    because: int | None = None
    """The place in the list of the hang that this one follows from: the ranks at fault wait there."""


@dataclass(frozen=True, slots=True)
class Hangs:
    """The result of all dumps. A hang that causes others stands before them."""

    hangs: tuple[Hang, ...]
    ranks: tuple[int, ...]
    """Ranks with a dump."""
    missing_ranks: tuple[int, ...]
    """Ranks that dumps name and that have no dump."""
    entries: int
    unfinished: int
    """Operations that had not ended on some rank."""
    notes: tuple[str, ...]
    """Comparisons that were not possible, and files that were left out."""
    blank: tuple[int, ...] = ()
    """Ranks whose dump holds nothing, since their recorder was off."""
