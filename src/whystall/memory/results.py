"""Results of a memory snapshot in bytes and nanoseconds; unknown values are `None` with a reason beside them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "AtEnd",
    "BatchRoom",
    "Category",
    "DeviceMemory",
    "FirstOut",
    "Growth",
    "GrowthSite",
    "Held",
    "Holder",
    "MemoryFinding",
    "MemoryReport",
    "OutOfMemory",
    "Peak",
    "PhasePeak",
    "RanksTogether",
    "Rescue",
    "SiteChange",
    "SiteExcess",
    "SnapshotComparison",
]  # fmt: skip


class Category(StrEnum):
    """Purpose of memory, as far as the record shows."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer state"
    ACTIVATIONS = "activations"
    TEMPORARIES = "temporaries"
    COMMUNICATION = "communication buffers"
    INPUT = "input"
    WORKSPACE = "library workspaces"
    PROGRAM = "tensors of the program"
    BEFORE = "allocated before the record"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Holder:
    """Allocations of one kind by one line. ``site`` is `None` where no frame was recorded.

    ``within`` is the line of a library that the line reached through a module's call.
    """

    category: Category
    site: str | None
    function: str | None
    label: str | None
    bytes: int
    count: int
    because: str
    within: str | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """The bytes of one category."""

    category: Category
    bytes: int
    count: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The moment at which most was allocated, or, where nothing was recorded, the snapshot's own."""

    event: int | None
    at_ns: int | None
    allocated_bytes: int
    reserved_bytes: int | None
    phase: str | None
    phase_known_by: str | None
    annotations: tuple[str, ...]
    step: int | None
    held: tuple[Held, ...]
    holders: tuple[Holder, ...]
    holders_left_out: int


@dataclass(frozen=True, slots=True)
class PhasePeak:
    """The most that was allocated while a phase lasted."""

    phase: str
    allocated_bytes: int


@dataclass(frozen=True, slots=True)
class AtEnd:
    """Reserved memory when the snapshot was made: every byte lies in one of the parts.

    ``fragmented_bytes`` are free in segments that also hold something, ``cached_bytes`` in segments that are free as
    a whole.
    """

    reserved_bytes: int
    allocated_bytes: int
    awaiting_bytes: int
    fragmented_bytes: int
    cached_bytes: int
    rounding_bytes: int
    segments: int
    largest_free_bytes: int
    expandable: bool


@dataclass(frozen=True, slots=True)
class GrowthSite:
    """A line whose memory stays, step after step."""

    site: str | None
    function: str | None
    bytes_per_step: int
    steps: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Increase of allocated memory at the end of each step over the step before."""

    bytes_per_step: int
    steps: int
    known_by: str
    sites: tuple[GrowthSite, ...]


@dataclass(frozen=True, slots=True)
class Rescue:
    """A way to make room for an allocation that found none. ``frees_bytes`` are the most that are free or unasked then.

    ``enough``: whether that amount was the missing one; `None` where that is not known.
    """

    remedy: str
    frees_bytes: int
    enough: bool | None
    known_by: str


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """An allocation that found no room.

    ``outside_bytes`` are neither free on the device nor reserved by this allocator: CUDA's context, libraries'
    workspaces, NCCL's buffers, other processes. ``missing_bytes`` are the part of the request beyond the device's free
    memory. For the last one of a record, ``held`` and ``holders`` list the memory then, ``rescues`` the remedies, the
    best one first, and ``segments`` the effect of expandable segments.
    """

    event: int
    at_ns: int | None
    unix_ns: int | None
    asked_bytes: int
    allocated_bytes: int
    reserved_bytes: int | None
    device_free_bytes: int | None
    outside_bytes: int | None
    outside_unknown_because: str | None
    site: str | None
    function: str | None = None
    missing_bytes: int | None = None
    held: tuple[Held, ...] = ()
    holders: tuple[Holder, ...] = ()
    rescues: tuple[Rescue, ...] = ()
    segments: str | None = None


@dataclass(frozen=True, slots=True)
class BatchRoom:
    """The highest peak of a whole step after the first, in a part that grows with the batch and one that does not.

    ``left_bytes`` are those of the device beyond the peak and ``outside_bytes``; if these are `None`, the memory
    outside torch's allocator has to be subtracted.
    """

    step: int
    peak_bytes: int
    grows_bytes: int
    stays_bytes: int
    untold_bytes: int
    outside_bytes: int | None
    left_bytes: int | None
    left_unknown_because: str | None


@dataclass(frozen=True, slots=True)
class MemoryFinding:
    """A cause of whystall's list (``whystall explain ID``) with its cost in bytes.

    ``enough_bytes``: with that much less reserved, the device would not have refused.
    """

    id: str
    says: str
    remedy: str
    saves_bytes: int | None
    known_by: str
    saves_unknown_because: str | None = None
    enough_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """One allocator of one snapshot. Times count from the first event of the record.

    ``retried_bytes`` are the largest request that succeeded after a refusal; `None` if there was none.
    """

    device: str
    events: int
    recorded_ns: int | None
    allocations: int
    baseline_bytes: int
    unmatched_frees: int
    unmatched_free_bytes: int
    lost: int
    peak: Peak
    at_end: AtEnd | None
    end_allocated_bytes: int
    growth: Growth | None
    no_growth_because: str | None
    steps: int
    batch: BatchRoom | None
    no_batch_because: str | None
    given_back: int
    given_back_bytes: int
    given_back_under_pressure: int
    retried_bytes: int | None
    out_of_memory: tuple[OutOfMemory, ...]
    curve: tuple[tuple[int, int], ...]
    phases: tuple[PhasePeak, ...]
    findings: tuple[MemoryFinding, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Results of one file."""

    file: str
    devices: tuple[DeviceMemory, ...]
    settings: str | None
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FirstOut:
    """The file of the rank that ran out of memory before all others, and the next one that did."""

    file: str
    asked_bytes: int
    next_file: str | None
    before_next_ns: int | None


@dataclass(frozen=True, slots=True)
class SiteExcess:
    """A line that holds more at the fullest rank's peak than the median of the other ranks, at theirs."""

    site: str | None
    function: str | None
    bytes: int
    median_of_others_bytes: int


@dataclass(frozen=True, slots=True)
class RanksTogether:
    """Snapshots of several ranks, one file each: of each the device that ran out, or else held most."""

    files: int
    ran_out: int
    first_out: FirstOut | None
    no_first_because: str | None
    fullest: str
    fullest_peak_bytes: int
    median_of_others_bytes: int
    more: tuple[SiteExcess, ...]


@dataclass(frozen=True, slots=True)
class SiteChange:
    """Memory of one line at the peak of each of two snapshots."""

    category: Category
    site: str | None
    function: str | None
    before_bytes: int
    after_bytes: int


@dataclass(frozen=True, slots=True)
class SnapshotComparison:
    """Two snapshots, one device of each, by line."""

    device: str
    before: str
    after: str
    before_peak_bytes: int
    after_peak_bytes: int
    changes: tuple[SiteChange, ...]
    changes_left_out: int
    unchanged_bytes: int
