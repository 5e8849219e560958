"""The samples of a whole run: its steps, the lines at which its thread was found, its memory."""

from __future__ import annotations

import msgspec

from whystall.analysis.results import Result, Timeline


class Environment(Result):
    """The environment of a watched job, from its first rank; ``None`` is not known.

    ``cores`` are the machine's, ``cores_allowed`` those that the job might use.
    """

    cpu: str | None = None
    cores: int | None = None
    cores_allowed: int | None = None
    python: str | None = None
    torch: str | None = None


class SlowStep(Result):
    """A step that took much longer than the median, and the parts of it that did (excess over their medians)."""

    step: int
    duration_ns: int
    excess_ns: int
    lost_ns: dict[str, int]


class SampledLine(Result):
    """A line of the user's code, and the share of the stack samples in which the stepping thread was found there.

    ``leaf`` is the innermost function (``module:name``), ``part`` the part of the step.
    """

    part: str
    file: str
    line: int
    function: str
    text: str
    leaf: str
    share: float


class MemoryRise(Result):
    """Memory that rises steadily over the longest stretch of steps without the profiler.

    ``device`` is ``None`` for the host. ``heap``: it is the memory that the host's allocator has given out, without
    free memory that stays with the process, and not resident memory.
    """

    device: int | None
    start_bytes: int
    rise_bytes: int
    over_steps: int
    heap: bool = False
    first_step_ns: int | None = None
    """Where steps become longer as it rises: the median of its first quarter, collections of garbage left out."""
    mean_step_ns: int | None = None
    """The mean step of the same stretch."""


class AllocatorRun(Result):
    """A device's allocator counters of torch over a run.

    ``retries`` is how often it freed all cached memory to serve a request, between its first and last look, which lie
    ``steps`` apart.
    """

    device: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    retries: int
    steps: int


class DeviceClocks(Result):
    """The clock of a device's multiprocessors over the samples in which it was busy (NVML).

    ``low_mhz`` is the tenth percentile; ``held_back`` the share of the samples in which the device named a reason of
    its own for a lower clock: heat, power or a brake of the hardware's (a power cap in software is usual at full load).
    """

    device: int
    samples: int
    median_mhz: int
    low_mhz: int
    held_back: float


class RecordedWindow(Result):
    """Steps that the profiler recorded, from the ``step``-th of the run on, and the median steps on both sides.

    ``lead_in_ns`` is of the last few before it; ``after_ns`` of the faster half of the time after it, or of the time
    after a later window where that is faster still. ``error_ns`` is the standard error of their difference,
    ``usual_change`` the largest change between neighbouring stretches of the run with no window between them, as a
    share (``None``: too few), ``steps_after`` how many steps were left to run.
    """

    step: int
    before_ns: int
    lead_in_ns: int
    after_ns: int
    error_ns: float
    usual_change: float | None
    steps_after: int


class ChangedPace(Result):
    """A run that changed its pace for good while it went on.

    The steps ``first`` to ``last`` are those at the reported pace; ``other_ns`` is the median step at the first other
    one. ``steps`` and ``durations_ns`` are of the whole run.
    """

    first: int
    last: int
    other_ns: int
    steps: int
    durations_ns: list[int]


class UnevenSteps(Result):
    """The excess work of each step's busiest rank over the mean of the ranks, over ``steps`` steps that all made.

    ``above_ns`` is its mean, ``usual_ns`` its median, and ``of_one_rank_ns`` the excess of one and the same rank in the
    long run. The same step is ``apart_ns`` longer on one rank than on another: near 0 where they wait for each other in
    each.
    """

    steps: int
    above_ns: int
    usual_ns: int
    of_one_rank_ns: int
    apart_ns: int


class RunSummary(Result):
    """All steps of a watched run, from its samples, without those under the profiler and the first ones.

    ``shares`` are of the measured time, by the stepping thread's activity; ``slow_ns`` is the slow steps' excess over
    the median. ``durations_ns`` holds the first steps too, thinned to at most 400 values that keep the spikes.
    ``ready_input_ns`` is the tenth percentile of the time that a step waits for its input: the time to hand over a
    batch that is ready, unless all steps wait.
    """

    rank: int
    steps: int
    profiled: int
    total_ns: int
    p10_ns: int
    median_ns: int
    p90_ns: int
    p99_ns: int
    max_ns: int
    trend_per_1000_steps: float | None
    shares: dict[str, float]
    on_cpu_share: float
    involuntary_switches_per_step: float
    major_faults_per_step: float
    rss_start_bytes: int | None
    rss_end_bytes: int | None
    slow_ns: int
    slow: list[SlowStep]
    durations_ns: list[int]
    changed: ChangedPace | None = None
    """Where the run changed its pace for good: then all else but ``trend``, memory and windows is of one of its paces.

    It is the one at which the latest window was recorded.
    """
    slow_steps: int = 0
    """How many slow steps there were; ``slow`` holds the slowest of them. Earlier versions wrote none."""
    slow_lost_ns: dict[str, int] = msgspec.field(default_factory=dict)
    """Total loss of the slow steps, by part."""
    trend: float | None = None
    """Growth of the median step from the first half to the second, as a share; ``None`` for few steps."""
    warm_up: int = 0
    mean_error_ns: float | None = None
    """The standard error of the mean step, by how stretches of the run differ; ``None`` for too few steps."""
    median_error_ns: float | None = None
    ready_input_ns: int = 0
    share_errors: dict[str, float] = msgspec.field(default_factory=dict)
    """Per part the standard error of its share: one odd step among few makes it as large as the share itself."""
    places: list[SampledLine] = msgspec.field(default_factory=list)
    stack_samples: int = msgspec.field(default=0, name="looks")
    """How often the stepping thread was looked at; ``places`` are shares of that."""
    worker_cpu_share: float | None = None
    """Share of the time that each child process (a loader's worker) was on a core, in the median.

    ``None`` without any.
    """
    workers: int = 0
    queued_share: float | None = None
    """Share of the time in which the stepping thread was ready to run and got no core; ``None`` where unknown."""
    other_cores: float | None = None
    """Cores that other processes of the machine used, on average; ``None`` where that was not seen."""
    own_cores: float | None = None
    """Cores that this process and its children used, on average; ``None`` where that was not seen."""
    thread_cores: float = 0.0
    """Cores that further threads of Python's used, on average."""
    beside: list[SampledLine] = msgspec.field(default_factory=list)
    """Where such threads were found that did not wait, as shares of the stack samples."""
    memory_rises: list[MemoryRise] = msgspec.field(default_factory=list)
    allocators: list[AllocatorRun] = msgspec.field(default_factory=list)
    clocks: list[DeviceClocks] = msgspec.field(default_factory=list)
    windows: list[RecordedWindow] = msgspec.field(default_factory=list)
    uneven: UnevenSteps | None = None
    """How unevenly this rank and the others work in the same steps; ``None`` for one rank, or where it is not known."""

    @property
    def slow_count(self) -> int:
        """How many slow steps there were."""
        return max(self.slow_steps, len(self.slow))

    def lost_when_slow(self, *parts: str) -> int:
        """The loss of the slow steps in some parts, in nanoseconds."""
        if self.slow_steps:
            return sum(self.slow_lost_ns.get(part, 0) for part in parts)
        return sum(step.lost_ns.get(part, 0) for step in self.slow for part in parts)

    @property
    def drawn_ns(self) -> list[int]:
        """Its steps from the first to the last, at every pace, thinned."""
        return self.durations_ns if self.changed is None else self.changed.durations_ns

    @property
    def all_steps(self) -> int:
        """The number of its steps, at every pace."""
        return self.steps if self.changed is None else self.changed.steps

    @property
    def measured(self) -> int:
        """How many steps the shares and times are of."""
        return self.steps - self.profiled - self.warm_up

    @property
    def mean_ns(self) -> float:
        """The mean of these steps."""
        return self.total_ns / max(self.measured, 1)


class SideBySide(Result):
    """The same moments of two ranks on one clock: of one that keeps others waiting, and of the one that waits longest.

    ``drawn`` is a step of the late rank, in its time; lanes name their rank.
    """

    late: int
    waiting: int
    drawn: Timeline
