"""Frozen results on the work done: efficiency, roofline, chains and origins of kernels, step counts.

As in `whystall.analysis.results`: integer nanoseconds and bytes, ``None`` where something is not known.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from whystall.analysis.results import Result

CountName = Literal[
    "launches",
    "graph_launches",
    "synchronizations",
    "allocator_calls",
    "operators",
    "compiled_regions",
    "kernels",
    "copies",
    "copied_bytes",
]


class StepCount(Result):
    """How often something happens in a step of one rank: ``usual`` in the median step, in ``alike`` of ``steps`` ones.

    ``least`` and ``most`` are of all steps. Runtime calls are counted by kind (``launches`` start kernels, copies and
    fills); a function that torch compiled is one of ``compiled_regions``, and each break in its graph one more.
    """

    rank: int
    name: CountName
    steps: int
    usual: int
    alike: int
    least: int
    most: int


class GivenRows(Result):
    """A product of a step by its operator and the shape of its weights.

    Each of ``calls`` in a step receives ``rows`` rows: samples or tokens.
    """

    operator: str
    weights: list[int]
    rows: int
    calls: int


class FusibleChain(Result):
    """Kernels that follow each other on a stream, each reading the output of the one before, and that could be one.

    Sums over ``count`` runs of the same operators and shapes; ``kernels`` and ``calls`` are of one run. ``fused_bytes``
    and ``fused_ns`` are those of one kernel that neither writes nor reads an intermediate tensor; those ``keeping``
    still write each, as a backward pass may need them. ``gap_ns`` is time between the kernels. ``start_ns`` is of one
    run.
    """

    operators: list[str]
    calls: int
    kernels: int
    count: int
    total_ns: int
    gap_ns: int
    bytes: int | None
    fused_bytes: int | None
    fused_bytes_keeping: int | None
    fused_ns: int | None
    fused_ns_keeping: int | None
    start_ns: int
    unknown_because: str | None


class ShortChains(Result):
    """Runs of at least ``at_least`` events on a stream that are all shorter than ``threshold_ns``."""

    threshold_ns: int
    at_least: int
    count: int
    kernels: int
    busy_ns: int
    gap_ns: int
    longest: int


class KernelChains(Result):
    """Chains of one device's kernels. ``fusible`` lists those with most time, the sums are of all."""

    rank: int
    device: int
    fusible: list[FusibleChain]
    fusible_count: int
    fusible_ns: int
    short: ShortChains


class OriginShare(Result):
    """Device events by their known origin, the first that applies.

    A replayed ``graph``; a ``compiled`` kernel, whose name holds its fused operators; an ``operator``; a compiled
    ``region`` and no more; a ``module`` or a ``python`` function without an operator; ``none``.
    """

    origin: Literal["graph", "compiled", "operator", "region", "module", "python", "none"]
    events: int
    device_ns: int


class FusedKernel(Result):
    """Events that stand for more than one operator: a compiled kernel, a graph's caller, a region's kernel.

    ``operators`` are those in a compiled kernel's name; ``modules`` those that launched most of it, a backward kernel's
    by its forward; ``launches`` is ``None`` where a launch call is not in the file.
    """

    name: str
    origin: Literal["graph", "compiled", "operator", "region", "module", "python", "none"]
    category: str | None
    operators: list[str]
    region: str | None
    modules: list[str]
    function: str | None
    launches: int | None
    events: int
    device_ns: int
    unknown_because: str | None


class KernelOrigins(Result):
    """Where one device's time comes from. ``shares`` add up to all its events; ``fused`` lists the largest."""

    rank: int
    device: int
    shares: list[OriginShare]
    fused: list[FusedKernel]
    fused_omitted: int


class WorkByDtype(Result):
    """Matrix work of one dtype; ``precision`` names the column of the accelerator table its peak is from."""

    dtype: str
    precision: str | None
    flops: int
    flops_causal: int
    executed_flops: int
    peak_flops_per_s: float | None


class RooflinePoint(Result):
    """All calls of one operator in one dtype. ``operations`` are useful FLOPs and elementwise operations.

    ``intensity`` is operations a byte, ``attainable_per_s`` the device's limit at it, ``share`` the reached share of
    that, ``headroom_ns`` the time that would be saved at the roofline.
    """

    operator: str
    dtype: str | None
    precision: str | None
    calls: int
    device_ns: int
    operations: int
    bytes: int
    intensity: float
    operations_per_s: float
    bytes_per_s: float
    attainable_per_s: float | None
    share: float | None
    headroom_ns: int | None
    bound: Literal["compute", "memory"] | None


class RooflineCeiling(Result):
    """The dense peak of one precision; ``ridge`` is the intensity from which it, not memory, is the limit."""

    precision: str
    flops_per_s: float
    ridge: float | None


class LeftOut(Result):
    """Device time that a picture cannot show, and why."""

    reason: str
    device_ns: int


class Roofline(Result):
    """Operators between the limits of memory and arithmetic; the points' time and ``left_out`` are all device time."""

    memory_bytes_per_s: float | None
    ceilings: list[RooflineCeiling]
    points: list[RooflinePoint]
    left_out: list[LeftOut]


class UncoveredWork(Result):
    """Events launched by ``operator`` (``None``: by none) whose work is in no number, and why."""

    operator: str | None
    events: int
    device_ns: int
    because: str


class DeviceEfficiency(Result):
    """How much of its peak one device used over its window.

    ``mfu`` is useful work (causal attention halved) at each dtype's dense peak over the window, ``hfu`` executed work;
    of the steady steps alone (``rated_steps`` of them) where others are far longer, such as one that compiles.
    ``covered_share`` is the share of device time whose operator has a cost. ``measured`` states which peaks come from
    ``whystall probe`` instead of a data sheet, and when. ``uncovered`` lists the operators of the rest of the time,
    communication left out. ``tensor_core_share`` is by the time of kernels that could use tensor cores,
    ``tensor_core_flops_share`` by their FLOPs.
    """

    rank: int
    device: int
    by_dtype: list[WorkByDtype]
    mfu: float | None
    hfu: float | None
    tensor_core_share: float | None
    covered_share: float
    peak: str | None
    peak_source: str | None
    unknown_because: str | None
    roofline: Roofline | None = None
    measured: str | None = None
    tensor_core_flops_share: float | None = None
    uncovered: list[UncoveredWork] = msgspec.field(default_factory=list)
    rated_steps: int | None = None


class Throughput(Result):
    """Units of work a second for each device of the job, as its user counts them, against a reference or a peak.

    ``utilisation`` is of the model FLOPs that the user gave, at the dense peak of ``precision``.
    """

    step_ns: int
    steps: int
    step_source: str
    devices: int
    tokens_per_s_per_device: float | None
    samples_per_s_per_device: float | None
    flops_per_s_per_device: float | None
    reference_per_s_per_device: float | None
    reference_unit: Literal["tokens", "samples"] | None
    reference_source: str | None
    reference_share: float | None
    precision: str | None
    peak_flops_per_s: float | None
    utilisation: float | None
    unknown_because: str | None


class Efficiency(Result):
    """Utilisation of the device that the verdict speaks of; ``devices`` has all."""

    mfu: float | None = None
    hfu: float | None = None
    tensor_core_share: float | None = None
    peak: str | None = None
    peak_source: str | None = None
    devices: list[DeviceEfficiency] = msgspec.field(default_factory=list)
    throughput: Throughput | None = None
