"""The throughput way of rating a job: units of work per second and device, against a reference or a peak.

It needs no recorded shapes: the caller passes the work of one step of the whole job (all devices together), and the
step time does the rest. Utilisation by FLOPs is that of the caller's model FLOPs at the dense peak of the dtype used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whystall.analysis.results import Device
from whystall.analysis.run_results import RunSummary
from whystall.analysis.trace_analysis import TraceAnalysis
from whystall.analysis.work_results import DeviceEfficiency, Throughput
from whystall.hardware.accelerators import PRECISIONS, Accelerator, Precision
from whystall.hardware.throughputs import Reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The work of one step of the whole job, as its user knows it.

    ``flops_per_step`` are model FLOPs, forward and backward. ``devices`` is the number in the job; ``precision`` the
    one that its products run in. Without these two the recording decides.
    """

    tokens_per_step: float | None = None
    samples_per_step: float | None = None
    flops_per_step: float | None = None
    devices: int | None = None
    precision: Precision | None = None
    reference: Reference | None = None


@dataclass(frozen=True, slots=True)
class StepTime:
    """The mean time from one step to the next, the number of steps, and the source."""

    mean_ns: float
    steps: int
    source: str


def step_time(devices: Sequence[Device], runs: Sequence[RunSummary]) -> StepTime | None:
    """The job's step time: from the steps outside the profiler if the run was watched, else from the recorded ones.

    Ranks wait for each other, so the slowest rank's is the job's. A recorded step's window ends where the next begins;
    the last one's does not, and is left out where there are others.
    """
    watched = [
        StepTime(run.mean_ns, run.measured, "all steps but the first and those under the profiler")
        for run in runs
        if run.measured > 0 and run.total_ns > 0
    ]
    if watched:
        return max(watched, key=lambda one: one.mean_ns)
    recorded = []
    for device in devices:
        windows = [step.window_ns for step in device.steps]
        whole = windows[:-1] or windows
        if sum(whole) > 0:
            recorded.append(StepTime(sum(whole) / len(whole), len(whole), "the recorded steps, under the profiler"))
    return max(recorded, key=lambda one: one.mean_ns, default=None)


def throughput(
    workload: Workload,
    step: StepTime,
    *,
    devices: int,
    peak: Accelerator | None = None,
    precision: Precision | None = None,
) -> Throughput:
    """The job's rates for each of its ``devices``.

    >>> step = StepTime(1e9, 10, "hand")
    >>> reference = Reference(3300, "tokens", "hand")
    >>> found = throughput(Workload(tokens_per_step=3 * 2048, reference=reference), step, devices=4)
    >>> found.tokens_per_s_per_device, round(found.reference_share, 3)
    (1536.0, 0.465)
    """
    seconds = step.mean_ns / 1e9

    def rate(per_step: float | None) -> float | None:
        return None if per_step is None else per_step / seconds / devices

    tokens, samples, flops = (
        rate(amount) for amount in (workload.tokens_per_step, workload.samples_per_step, workload.flops_per_step)
    )
    reference = workload.reference
    reached = None if reference is None else tokens if reference.unit == "tokens" else samples
    used = workload.precision or precision
    ceiling = None if peak is None or used is None else peak.peak_flops_per_s(used)
    return Throughput(
        step_ns=round(step.mean_ns),
        steps=step.steps,
        step_source=step.source,
        devices=devices,
        tokens_per_s_per_device=tokens,
        samples_per_s_per_device=samples,
        flops_per_s_per_device=flops,
        reference_per_s_per_device=None if reference is None else reference.per_device_per_s,
        reference_unit=None if reference is None else reference.unit,
        reference_source=None if reference is None else reference.source,
        reference_share=None if reference is None or reached is None else reached / reference.per_device_per_s,
        precision=used,
        peak_flops_per_s=ceiling,
        utilisation=None if ceiling is None or flops is None else flops / ceiling,
        unknown_because=_why_unknown(workload, reached, flops, peak, used),
    )


def _why_unknown(
    workload: Workload,
    reached: float | None,
    flops: float | None,
    peak: Accelerator | None,
    precision: Precision | None,
) -> str | None:
    reasons: list[str | None] = []
    if workload.reference is not None and reached is None:
        reasons.append(f"the reference counts {workload.reference.unit}, and how many a step has was not given")
    if flops is not None and peak is None:
        reasons.append("no peak is known for the device")
    elif flops is not None and peak is not None:
        reasons.append("the precision was not recorded" if precision is None else peak.why_no_peak(precision))
    return "; ".join(reason for reason in reasons if reason) or None


def job_throughput(
    workload: Workload | None,
    analyses: Sequence[TraceAnalysis],
    runs: Sequence[RunSummary],
    *,
    world_size: int | None,
) -> tuple[Throughput | None, list[str]]:
    """The rates of a job from its analyses, and a sentence where there can be none."""
    if workload is None:
        return None, []
    devices = [device for analysis in analyses for device in analysis.devices]
    step = step_time(devices, runs)
    if step is None:
        return None, ["no step was seen, so no throughput can be given (prof.step() marks one)"]
    peaks = {peak.name: peak for analysis in analyses for peak in analysis.workings.peaks.values() if peak is not None}
    rated = throughput(
        workload,
        step,
        devices=workload.devices or world_size or len(devices) or len(runs),
        peak=next(iter(peaks.values())) if len(peaks) == 1 else None,
        precision=main_precision([row for analysis in analyses for row in analysis.efficiency]),
    )
    return rated, []


def main_precision(ratings: Sequence[DeviceEfficiency]) -> Precision | None:
    """The precision in which most recorded FLOPs were done."""
    rows = [row for rating in ratings for row in rating.by_dtype]
    totals = {name: sum(row.flops for row in rows if row.precision == name) for name in PRECISIONS}
    most = max(totals, key=lambda name: totals[name])
    return most if totals[most] else None
