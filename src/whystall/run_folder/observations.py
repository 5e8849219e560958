"""Observations of a watched job's tensors and code: each is declared once, for who writes it and who asks for it.

A new one takes a type and a field of `Observations` here, the look that makes it, and the rule that asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

MOST_SPARSE: Final = 16
MOST_TABLES: Final = 64
MOST_LIMITS: Final = 8
"""Most functions that torch's compiler gave up that are written."""
MOST_WINDOW_PLACES: Final = 100
"""Most places of samples in recorded windows that are written."""
_MOST_SIZES: Final = 256
_LATEST_NS: Final = 1 << 62

Word = Annotated[str, Meta(max_length=1_000)]
Line = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(gt=0)]
Share = Annotated[float, Meta(gt=0, le=1)]
Sums = Annotated[tuple[Count, Count], Meta(description="a sum, and the sum of squares")]
Instant = Annotated[int, Meta(gt=0, lt=_LATEST_NS)]


class MadeAt(msgspec.Struct, frozen=True):
    """The user's line that batches come from: a function that makes them, or the call of a module with them."""

    file: Word
    line: Line
    function: Word
    text: Word


class MadeTable(msgspec.Struct, frozen=True):
    """A table of embeddings, and the line that makes it."""

    rows: Count
    size: Count
    at: MadeAt


class PaddedBatches(msgspec.Struct, frozen=True, kw_only=True):
    """Padding in the examined batches: all places, those up to each batch's longest row, and real ones.

    Each is two sums over the rows: of their lengths, and of these squared (as attention's work grows). ``sizes`` are
    the rows and places of the first few, also where convolutions leave every second, fourth or eighth frame.
    """

    batches: Count
    positions: Sums
    needed: Sums
    real: Sums
    sizes: Annotated[list[tuple[Count, Count]], Meta(max_length=_MOST_SIZES)]
    loaded: bool = True
    """Whether a data loader handed them out; else they are a module's arguments."""
    made_at: MadeAt | None = None
    """The first line of the function that puts the loader's batches together, or the call; ``None``: a library's."""

    @property
    def is_valid(self) -> bool:
        """Whether no amount is larger than one that it is part of."""
        amounts = zip(self.real, self.needed, self.positions, strict=True)
        return all(least <= more <= most for least, more, most in amounts)


class RepeatedModule(msgspec.Struct, frozen=True):
    """A module or operator with repeated inputs: its class or name, its place, its time."""

    name: Word
    file: Word
    line: int
    function: Word
    text: Word
    ns: Count


class RepeatedWork(msgspec.Struct, frozen=True, kw_only=True):
    """Repeated work in the examined steps: outermost calls of the same inputs and outputs."""

    steps: Count
    calls: Count
    again_ns: Count
    measured_ns: int
    """The length of these steps together."""
    differentiated_ns: int = 0
    """The part of ``again_ns`` in calls that gradients go back through: their backward pass is repeated, too."""
    shared_ns: int = 0
    """The part of ``again_ns`` in calls on tokens that begin as those of the call before."""
    kind_calls: int = 0
    """All calls of the longest module with repeated ones, if a part of the inputs recurs by chance; else 0."""
    kind_ns: int = 0
    """The time of these."""
    error: Annotated[float, Meta(ge=0, le=1)]
    """The standard error of the share that is computed again, by how it differs from step to step."""
    modules: Annotated[list[RepeatedModule], Meta(min_length=1, max_length=16)]
    """Those that took longest."""

    @property
    def is_valid(self) -> bool:
        """Whether no part is longer than its whole."""
        of_kind = self.kind_ns == 0 or (self.calls <= self.kind_calls and self.kind_ns <= self.measured_ns)
        return of_kind and sum(one.ns for one in self.modules) <= self.again_ns <= self.measured_ns


class SparseMatrix(msgspec.Struct, frozen=True):
    """A matrix in products with at most a share of nonzero entries."""

    rows: Count
    columns: Count
    share: Share


class CountedLabels(msgspec.Struct, frozen=True):
    """Scores that a loss was given, row by row, and the share of the rows whose label the loss does not ignore."""

    rows: Count
    columns: Count
    share: Share


class AttendedScores(msgspec.Struct, frozen=True):
    """Attention scores some of which a mask hides: the number of each, and the shares that count."""

    queries: Count
    keys: Count
    kept: Share
    """The share of the keys that some query of some sequence sees."""
    tiles: Share
    """The share of groups of queries and keys, without padding, in which a query sees a key."""
    causal: bool
    """Whether the mask hides from each query the keys that come later, and nothing else."""
    sliding: bool
    """Whether each query sees keys at the same distances as the one before it."""


class CompileLimit(msgspec.Struct, frozen=True):
    """A function that torch's compiler gave up: where it begins, after how many versions, and why it needed another."""

    function: Word
    file: Word
    line: Line
    text: Word
    versions: Line
    reason: Word


class WindowPlace(msgspec.Struct, frozen=True):
    """A place in the code, the innermost function called there, and when the thread was found in it (Unix, ns)."""

    file: Word
    line: Line
    function: Word
    text: Word
    leaf: Word
    at_unix_ns: list[Instant]


class Observations(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's observations; an absent one was not made, or found nothing."""

    padding: PaddedBatches | None = None
    """Sequences of unequal length."""
    repeated: RepeatedWork | None = None
    """Work that was done again."""
    unread: RepeatedWork | None = None
    """Work whose results nothing read."""
    masked: RepeatedWork | None = None
    """Work on rows that a mask threw away."""
    partly: RepeatedWork | None = None
    """Work beside the part of it that was read."""
    alike: RepeatedWork | None = None
    """Work on rows equal to earlier ones within the same call."""
    sparse: Annotated[tuple[SparseMatrix, ...], Meta(max_length=MOST_SPARSE)] = ()
    """The matrices in products that are nearly all zeros."""
    labels: Annotated[tuple[CountedLabels, ...], Meta(max_length=MOST_SPARSE)] = ()
    """The losses that ignore some of their labels."""
    tables: Annotated[tuple[MadeTable, ...], Meta(max_length=MOST_TABLES)] = ()
    """The tables of embeddings that the job made."""
    attended: Annotated[tuple[AttendedScores, ...], Meta(max_length=MOST_SPARSE)] = ()
    """The attention scores some of which a mask hides."""
    given_up: Annotated[tuple[CompileLimit, ...], Meta(max_length=MOST_LIMITS)] = ()
    """The functions that torch's compiler runs uncompiled, since it compiled them too often."""
    in_windows: Annotated[tuple[WindowPlace, ...], Meta(max_length=MOST_WINDOW_PLACES)] = ()
    """Where the stepping thread was found while windows were recorded."""


def observed(written: Mapping[str, Any]) -> Observations:
    """The observations in a rank's description; one that is invalid is as if it were absent."""
    found = {}
    for field in msgspec.structs.fields(Observations):
        try:
            value = msgspec.convert(written.get(field.name, field.default), field.type)
        except msgspec.ValidationError:
            continue
        if getattr(value, "is_valid", True):
            found[field.name] = value
    return Observations(**found)


def all_padding(seen: Sequence[PaddedBatches]) -> PaddedBatches | None:
    """The padding that several ranks saw, together."""
    if not seen:
        return None
    return PaddedBatches(
        batches=sum(one.batches for one in seen),
        positions=_both([one.positions for one in seen]),
        needed=_both([one.needed for one in seen]),
        real=_both([one.real for one in seen]),
        sizes=sorted({size for one in seen for size in one.sizes})[:_MOST_SIZES],
        loaded=all(one.loaded for one in seen),
        made_at=seen[0].made_at,
    )


def _both(amounts: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return sum(first for first, _ in amounts), sum(second for _, second in amounts)
