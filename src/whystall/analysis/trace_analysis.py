"""The whole analysis of a single trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from whystall.analysis import intervals
from whystall.analysis.batches import given_rows
from whystall.analysis.chains import kernel_chains
from whystall.analysis.communication import Collectives, collectives_of
from whystall.analysis.counters import DeviceCounter, counter_results
from whystall.analysis.counts import step_counts
from whystall.analysis.cpu import cpu_account, cpu_device
from whystall.analysis.device import DeviceAccount, account_for, device_result, devices_of
from whystall.analysis.efficiency import accelerator_of, device_efficiency, kernel_work, tensor_core_use, with_work
from whystall.analysis.host_states import host_events
from whystall.analysis.hosts import host_result
from whystall.analysis.inputs import input_results
from whystall.analysis.intervals import Cumulative
from whystall.analysis.kernel_classes import Classified, KernelClass, classify
from whystall.analysis.kernels import family_key, family_results, kernel_results
from whystall.analysis.memory import memory_results
from whystall.analysis.memory_results import MemoryPeak
from whystall.analysis.modules import module_places, module_results
from whystall.analysis.operators import operator_results
from whystall.analysis.origins import kernel_origins
from whystall.analysis.phases import phase_results
from whystall.analysis.results import (
    Device,
    Host,
    InputWait,
    Kernel,
    KernelFamily,
    Module,
    Operator,
    Phase,
    Timeline,
)
from whystall.analysis.timelines import device_timeline
from whystall.analysis.wholeness import gaps_of
from whystall.analysis.work import least_ns, uses_tf32
from whystall.analysis.work_results import DeviceEfficiency, GivenRows, KernelChains, KernelOrigins, StepCount
from whystall.analysis.workings import Workings, workings_of
from whystall.hardware.calibration import Calibration
from whystall.trace.model import Trace


@dataclass(frozen=True, slots=True)
class TraceAnalysis:
    """The results of one trace, as sections of a report."""

    rank: int
    origin_ns: int
    """The trace's first instant, which the times of the sections count from."""
    devices: list[Device]
    kernels: list[Kernel]
    kernel_families: list[KernelFamily]
    operators: list[Operator]
    modules: list[Module]
    phases: list[Phase]
    collectives: Collectives
    links: dict[int, float]
    """Peaks of the devices' links, in bytes per second and direction, where they are known."""
    input: list[InputWait]
    host: Host
    memory: list[MemoryPeak]
    counters: list[DeviceCounter]
    timelines: list[Timeline]
    efficiency: list[DeviceEfficiency]
    signals: dict[str, bool]
    lacks: list[str]
    """Gaps of the recording, a sentence each."""
    chains: list[KernelChains]
    origins: list[KernelOrigins]
    counts: list[StepCount]
    given: list[GivenRows]
    workings: Workings


def analyze_trace(
    trace: Trace, *, rank: int = 0, classes: Sequence[KernelClass] = (), calibrations: Sequence[Calibration] = ()
) -> TraceAnalysis:
    """The analysis of one trace.

    ``classes`` are kernel classes that go before the shipped ones; ``calibrations`` fill gaps in the table of
    accelerators.
    """
    origin = origin_of(trace)
    classified = classify(trace.device_events, classes)
    accounts, devices, host_compute = _devices(trace, rank, classified, origin)
    collectives = collectives_of(trace, accounts, rank, host_compute)
    peaks = {device.device: accelerator_of(trace, device, calibrations) for device in devices if device.kind != "cpu"}
    links = {device: peak.link_gb_per_s * 1e9 for device, peak in peaks.items() if peak and peak.link_gb_per_s}
    workings = workings_of(trace, classified, peaks)
    tree, work, owner = workings.tree, workings.work, workings.events
    only_peak = next(iter(peaks.values())) if len(peaks) == 1 else None
    least = least_ns(work, only_peak, tf32=uses_tf32(classified))
    places = module_places(trace, tree)
    key = family_key(classified)
    by_name, by_family = (
        kernel_work(trace, owner, group, groups, work, least) if work.counted.any() else None
        for group, groups in ((classified.name_of, len(classified.names)), (key, int(key.max(initial=0)) + 1))
    )
    events_of = {number: account.events for number, account in accounts.items()}
    drawn = [device_timeline(trace, device, events_of.get(device.device), origin) for device in devices]
    return TraceAnalysis(
        rank=rank,
        origin_ns=origin,
        devices=devices,
        kernels=kernel_results(trace, classified, rank, by_name),
        kernel_families=family_results(trace, classified, rank, by_family, tensor_core_use(classified)),
        operators=with_work(operator_results(trace, tree, rank), work, tree, least),
        modules=module_results(trace, tree, places, rank, work, least),
        phases=phase_results(trace, tree, rank),
        collectives=collectives,
        links=links,
        input=input_results(trace, accounts, rank),
        host=host_result(trace, rank),
        memory=memory_results(trace, rank, origin, tree, places),
        counters=counter_results(trace, accounts, rank),
        timelines=[timeline for timeline in drawn if timeline is not None],
        efficiency=[
            device_efficiency(trace, device, tree, work, owner, classified, peaks[device.device])
            for device in devices
            if device.kind != "cpu"
        ],
        signals=signals_of(trace),
        lacks=[gap.sentence for gap in gaps_of(trace)],
        chains=[
            kernel_chains(trace, device, tree, work, owner, classified, peaks[device.device], origin=origin)
            for device in devices
            if device.kind != "cpu"
        ],
        origins=[kernel_origins(trace, device, tree, places) for device in devices if device.kind != "cpu"],
        counts=step_counts(trace, rank),
        given=given_rows(trace),
        workings=workings,
    )


def _devices(
    trace: Trace, rank: int, classified: Classified, origin: int
) -> tuple[dict[int, DeviceAccount], list[Device], Cumulative | None]:
    """Each device with its account; of a job without an accelerator the CPU, which has none, and when it computed."""
    if trace.device_events.is_empty():
        cpu = cpu_account(trace)
        if cpu is None:
            return {}, [], None
        return {}, [cpu_device(trace, cpu, rank, origin)], cpu.work.cumulative(intervals.COMPUTE_RUNS)
    host = host_events(trace, collectives=False)
    accounts = {number: account_for(events, host) for number, events in devices_of(trace, classified.class_of).items()}
    devices = [device_result(trace, rank, number, account, origin) for number, account in accounts.items()]
    return accounts, devices, None


def origin_of(trace: Trace) -> int:
    """The earliest time in the trace, which reports count from."""
    tables = (
        trace.device_events,
        trace.operators,
        trace.annotations,
        trace.python_functions,
        trace.runtime_calls,
        trace.memory_events,
    )
    return min((int(table["ts_ns"][0]) for table in tables if len(table)), default=0)


def signals_of(trace: Trace) -> dict[str, bool]:
    """The signals in the recording; an absent one limits the conclusions."""
    operators = trace.operators
    frames = _frames_of_work(trace)
    void = {signal for gap in gaps_of(trace) for signal in gap.voids}
    there = {
        "device_events": not trace.device_events.is_empty(),
        "launch_calls": not trace.runtime_calls.is_empty(),
        "operators": not operators.is_empty(),
        "steps": not trace.steps.is_empty(),
        "shapes": len(operators) > 0 and bool(operators["input_dims"].is_not_null().any()),
        "python_stacks": not frames.is_empty(),
        "modules": bool(frames["module"].is_not_null().any()),
        "memory": not trace.memory_events.is_empty(),
        "sync_events": not trace.synchronizations.is_empty(),
        "communication_records": not trace.collectives.is_empty(),
        "forward_backward_links": len(operators) > 0 and bool(operators["forward"].is_not_null().any()),
    }
    return {signal: found and signal not in void for signal, found in there.items()}


def _frames_of_work(trace: Trace) -> pl.DataFrame:
    """The Python calls of threads that call operators or the runtime; all calls where no thread does.

    A thread that only waits (a progress bar's monitor) is no evidence about the others.
    """
    frames = trace.python_functions
    working = pl.concat([trace.operators["thread"], trace.runtime_calls["thread"]]).unique()
    return frames if working.is_empty() else frames.filter(frames["thread"].is_in(working.implode()))
