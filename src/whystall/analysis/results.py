"""The frozen results that analyses return; together they are the body of ``whystall.report/1``.

Integer nanoseconds and bytes throughout; times that name an instant (``start_ns``) count from the
trace's own origin. ``None`` means "not known", with the reason in the report's ``source`` section.
Every row carries the ``rank`` of the file it came from, so that several ranks share one table.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from whystall.analysis.tenths import tenths

EventClass = Literal["compute", "communication", "memory"]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every result: immutable, built by keyword."""


class Ledger(Result):
    """Every nanosecond of a window, once: the parts sum to the window exactly."""

    compute: int = 0
    communication: int = 0
    memory: int = 0
    idle_input: int = 0
    idle_sync: int = 0
    idle_python: int = 0
    idle_dispatch: int = 0
    idle_launch: int = 0
    idle_allocator: int = 0
    idle_gc: int = 0
    idle_dependency: int = 0
    idle_gap: int = 0
    idle_unknown: int = 0

    def parts(self) -> dict[str, int]:
        """The parts by name, in the order in which an instant is attributed."""
        return {name: getattr(self, name) for name in self.__struct_fields__}

    def shares(self) -> dict[str, float]:
        """The share of each part in tenths of a percent, as reports show it: they add up to 1."""
        parts = self.parts()
        return {name: value / 1000 for name, value in zip(parts, tenths(parts.values()), strict=True)}

    @property
    def total_ns(self) -> int:
        """The sum of all parts, which is the window."""
        return sum(self.parts().values())

    @property
    def idle_ns(self) -> int:
        """The sum of the idle parts."""
        return self.total_ns - self.compute - self.communication - self.memory


class UnknownTime(Result):
    """Why a share of the idle time could not be decided, and which signal would decide it."""

    reason: str
    missing_signal: str | None
    idle_ns: int


class IdleCause(Result):
    """Idle time by what the next event was waiting for (definitions in ``docs/numbers.md``)."""

    host_late_ns: int
    queued_but_waiting_ns: int
    launch_unknown_ns: int
    gaps: int


class ClassCounts(Result):
    """How many device events of each class there are."""

    compute: int
    communication: int
    memory: int


class Stream(Result):
    """One queue of a device."""

    stream: int
    events: int
    busy_ns: int


class LaunchLinks(Result):
    """How many device events have their launch call in the file."""

    linked: int
    unlinked: int


class ShortKernels(Result):
    """Device events shorter than ``threshold_ns``."""

    threshold_ns: int
    count: int
    total_ns: int


class Step(Result):
    """One iteration as the device saw it: the events that the step launched, not others that ran meanwhile.

    ``busy_ns``, ``compute_ns``, ``communication_ns`` and ``memory_ns`` are unions over the events the step launched.
    ``ledger`` accounts for ``window_ns``: from the step's first event, without copies that run ahead on a stream of
    their own, to that of the next step (the last step: to its own last event's end).
    """

    name: str
    gpu_events: int
    start_ns: int
    window_ns: int
    device_span_ns: int
    host_ns: int | None
    busy_ns: int
    compute_ns: int
    communication_ns: int
    memory_ns: int
    ledger: Ledger
    outlier: bool = False
    unshared: bool = False
    """Not every rank recorded it: it may wait for a rank that writes its trace."""


class Device(Result):
    """One device over the window from its first event's start to its last event's end."""

    rank: int
    device: int
    kind: Literal["gpu", "accelerator", "cpu"]
    name: str | None
    gpu_events: int
    start_ns: int
    window_ns: int
    busy_ns: int
    idle_ns: int
    compute_ns: int
    communication_ns: int
    memory_ns: int
    compute_communication_overlap_ns: int
    exposed_communication_ns: int
    exposed_memory_ns: int
    kernel_sum_ns: int
    counts: ClassCounts
    ledger: Ledger
    idle_cause: IdleCause | None
    idle_unknown: list[UnknownTime]
    streams: list[Stream]
    launch: LaunchLinks
    short_kernels: ShortKernels
    distinct_kernel_names: int
    same_stream_overlaps: int
    steps: list[Step]
    steps_from: str | None


class Kernel(Result):
    """Device events of one name. ``share`` is of the sum of all event durations of the rank.

    Work is that of the operator calls whose main event has the name (of its kernels the longest, matrix products
    first). Each rate is over the events whose work is known for it; ``covered_share`` is their share of the time.
    """

    rank: int
    name: str
    class_: EventClass = msgspec.field(name="class")
    family: str | None
    count: int
    total_ns: int
    mean_ns: int
    min_ns: int
    max_ns: int
    share: float
    flops: int | None = None
    flops_causal: int | None = None
    bytes: int | None = None
    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    roofline: float | None = None
    covered_share: float | None = None


class KernelFamily(Result):
    """Device events of one family of kernels; ``family`` is ``None`` where no rule knows the name.

    Work and rates as for `Kernel`. ``tensor_core_share`` is the share of the family's time in kernels that by their
    names ran on tensor cores; ``None`` for families that cannot.
    """

    rank: int
    class_: EventClass = msgspec.field(name="class")
    family: str | None
    count: int
    total_ns: int
    share: float
    flops: int | None = None
    flops_causal: int | None = None
    bytes: int | None = None
    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    roofline: float | None = None
    covered_share: float | None = None
    tensor_core_share: float | None = None


class Operator(Result):
    """Calls of one operator. Device time is that of the events it launched, by correlation.

    ``device_ns`` includes operators called inside (a recursive call counts once), ``device_self_ns`` only events whose
    innermost operator this is. ``flops`` are dense, ``flops_causal`` leave out the part that a causal mask makes
    useless; ``flops_per_s`` is of the latter. ``roofline`` is the least time of the work over its real time.
    """

    rank: int
    name: str
    calls: int
    device_ns: int
    device_self_ns: int
    device_events: int
    host_ns: int
    host_self_ns: int
    flops: int | None = None
    flops_causal: int | None = None
    bytes: int | None = None
    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    roofline: float | None = None


class Module(Result):
    """One ``nn.Module`` of the module tree; times and work include its children, ``*_self_ns`` do not.

    ``forward_flops`` and ``backward_flops`` are dense (a causal mask saves nothing), the rates are of useful FLOPs and
    given where at least 95 % of the time has known work. Recomputation by checkpointing runs, and counts, in the
    backward pass. ``roofline`` and ``covered_share`` cover forward and backward together.
    """

    rank: int
    path: str
    class_: str = msgspec.field(name="class")
    calls: int
    forward_ns: int
    backward_ns: int
    forward_self_ns: int
    backward_self_ns: int
    host_ns: int
    host_self_ns: int
    parameters: int | None = None
    forward_flops: int | None = None
    backward_flops: int | None = None
    forward_bytes: int | None = None
    backward_bytes: int | None = None
    forward_flops_per_s: float | None = None
    backward_flops_per_s: float | None = None
    forward_bytes_per_s: float | None = None
    backward_bytes_per_s: float | None = None
    roofline: float | None = None
    covered_share: float | None = None


class Phase(Result):
    """Device and host time of one phase of training (or of a run without a backward pass)."""

    rank: int
    device: int
    phase: Literal["forward", "backward", "optimizer", "other"]
    device_ns: int
    device_events: int
    host_ns: int


class Collective(Result):
    """Communication of one kind: name, group and dtype. ``overlap_ns`` ran while compute ran.

    ``wait_ns`` was spent waiting for other ranks (``None``: not all of them were recorded). ``algbw`` and ``busbw`` are
    in bytes per second as nccl-tests defines them, of the transfer alone where waiting is known and of the whole time
    where not. ``wirebw`` crosses the device's own link, ``share_of_peak`` is its share of the link's peak (``None``:
    above it, or not known), and ``link_note`` the reason where the bus bandwidth is above the peak. For messages of
    several sizes ``latency_ns`` is the time of each at any size, ``busbw_beyond_latency`` the bus bandwidth of the
    remaining time, and ``small_share`` the share of messages that take mostly latency.
    """

    rank: int
    device: int
    collective: str
    group: str | None
    group_size: int | None
    ranks: list[int] | None
    dtype: str | None
    count: int
    bytes: int | None
    total_ns: int
    min_ns: int
    max_ns: int
    overlap_ns: int
    exposed_ns: int
    wait_ns: int | None = None
    algbw: float | None = None
    busbw: float | None = None
    wirebw: float | None = None
    share_of_peak: float | None = None
    link_note: str | None = None
    latency_ns: float | None = None
    busbw_beyond_latency: float | None = None
    small_share: float | None = None


class RankMeetings(Result):
    """The collectives of one rank whose other ranks were all recorded: how often it came last, for how long it waited.

    ``alone_ns`` is its delay after the last of the others, summed over all collectives to which it came last.
    ``clock_offset_ns`` was added to its times to put them on the first rank's clock (at ``clock_uncertainty_ns``, one
    standard deviation), and ``clock_drift`` times the distance from the middle of the recording.
    """

    rank: int
    meetings: int
    last: int
    wait_ns: int
    alone_ns: int
    clock_offset_ns: int
    clock_drift: float
    clock_uncertainty_ns: float | None


class InputWait(Result):
    """Time the training thread spent fetching input; ``exposed_ns`` of it the device stood idle."""

    rank: int
    name: str
    count: int
    total_ns: int
    max_ns: int
    exposed_ns: int


class HostThread(Result):
    """One thread of the process: its activity, innermost event first."""

    rank: int
    pid: int | str
    tid: int | str
    name: str | None
    role: Literal["training", "backward", "other"]
    operator_self_ns: int
    runtime_ns: int
    python_self_ns: int
    annotation_self_ns: int
    launches: int


class HostCall(Result):
    """Runtime calls of one name (``cudaLaunchKernel``, ``hipStreamSynchronize``, ...)."""

    rank: int
    name: str
    kind: Literal["launch", "sync", "allocator", "graph", "other"]
    count: int
    total_ns: int
    mean_ns: int
    max_ns: int


class Host(Result):
    """Activity of the host."""

    threads: list[HostThread] = []
    calls: list[HostCall] = []


class Lane(Result):
    """One row of a timeline. Events are ``(start_ns, duration_ns, name index, class index)``."""

    label: str
    kind: Literal["stream", "thread"]
    events: list[tuple[int, int, int, int]]
    coalesced: int = 0


class Timeline(Result):
    """The device's and launching threads' events in one representative step."""

    rank: int
    device: int
    step: str | None
    start_ns: int
    window_ns: int
    names: list[str]
    classes: list[str]
    lanes: list[Lane]
