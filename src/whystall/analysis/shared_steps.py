"""Which steps of several ranks all of them recorded: in the others one may wait for a rank that writes its trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from whystall.analysis.communication import attendance_of
from whystall.analysis.kernel_classes import COMMUNICATION
from whystall.analysis.meetings import meetings
from whystall.analysis.results import Step
from whystall.analysis.step_numbers import shared, shifts
from whystall.analysis.trace_analysis import TraceAnalysis
from whystall.trace.link import rows_of
from whystall.trace.model import Trace


def marked_unshared(traces: Sequence[Trace], analyses: Sequence[TraceAnalysis]) -> list[TraceAnalysis]:
    """The analyses with steps marked that not every rank recorded, where ranks began with different ones.

    Applies only to jobs with devices: a library's collectives on the host have steps of the host.
    """
    if len(analyses) < 2 or any(trace.device_events.is_empty() for trace in traces):
        return list(analyses)
    classes = [one.workings.classified.class_of for one in analyses]
    attended = [attendance_of(trace, one.rank, own) for trace, one, own in zip(traces, analyses, classes, strict=True)]
    steps = [
        rows_of(trace.device_events["step"])[own == COMMUNICATION].astype(np.int64)
        for trace, own in zip(traces, classes, strict=True)
    ]
    moved = shifts(steps, meetings(attended))
    if not any(moved):
        return list(analyses)
    recorded = [np.arange(len(trace.steps)) + later for trace, later in zip(traces, moved, strict=True)]
    whole = shared(recorded)
    return [
        _marked(one, trace, {name for name, at in zip(_names(trace), own.tolist(), strict=True) if at not in whole})
        for one, trace, own in zip(analyses, traces, recorded, strict=True)
    ]


def _names(trace: Trace) -> list[str]:
    return trace.steps["name"].cast(str).to_list()


def _marked(analysis: TraceAnalysis, trace: Trace, alone: set[str]) -> TraceAnalysis:
    if len(set(_names(trace))) < len(trace.steps) or not alone:
        return analysis
    devices = [
        msgspec.structs.replace(device, steps=[_mark(step, alone) for step in device.steps])
        for device in analysis.devices
    ]
    return replace(analysis, devices=devices)


def _mark(step: Step, alone: set[str]) -> Step:
    return msgspec.structs.replace(step, unshared=True) if step.name in alone else step
