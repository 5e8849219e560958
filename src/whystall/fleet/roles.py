"""Turns the user's inputs into each process's activity in its role: by traces, by marks in traces, or by samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import polars as pl

from whystall.analysis import intervals
from whystall.analysis.cpu import cpu_account
from whystall.analysis.intervals import Timeline, class_timeline
from whystall.analysis.kernel_classes import classify
from whystall.analysis.roles import PAUSE_NS, Doing, Roles, Stretches, roles_of
from whystall.errors import InputError
from whystall.trace.discovery import folders_among
from whystall.trace.load import load_traces
from whystall.trace.manifest import as_stated, place_of, read_manifest
from whystall.trace.model import Trace
from whystall.trace.ranks import facts_of, of_each_rank
from whystall.trace.readers.registry import installed_readers
from whystall.trace.recordings import holds_work, read_all_samples, trace_files
from whystall.trace.samples import RunSamples
from whystall.vocabulary.roles import Phase, phase_named

OTHER: Final = "other"
"""The role of a process outside of the phases that it marks."""
# The inner one of nested phases counts: a weight transfer within a rollout is a transfer, and not vice versa.
_INNERMOST_FIRST: Final[tuple[Phase, ...]] = ("sync", "scoring", "reward", "rollout", "training")
_STEP: Final = "steps of samples"


class Source(NamedTuple):
    """An input of the user: a path, and the role of its processes; ``None``: the marks in its traces give it."""

    role: str | None
    path: str


class Found(NamedTuple):
    """The ledger over roles, its source, and sentences on left out parts."""

    roles: Roles
    by: str
    notes: list[str]


def read_roles(sources: Sequence[Source], *, cache: bool = True) -> Found:
    """The ledger over the roles of some recordings.

    Traces show to the nanosecond when a process works, samples of watched runs step by step: samples apply where traces
    were not recorded at the same time. Raises ``InputError`` where neither shows it.
    """
    notes: list[str] = []
    traced: list[Doing] = []
    sampled: list[Doing] = []
    all_traced = all_sampled = True
    for source in sources:
        doings = list(_of_traces(source, notes, cache=cache))
        samples = read_all_samples(folders_among([source.path]), notes)
        steps = [_of_samples(source.role, one) for one in samples if source.role and len(one.steps)]
        all_traced, all_sampled = all_traced and bool(doings), all_sampled and bool(steps)
        traced += doings
        sampled += steps
    for doings, by, whole in ((traced, "traces", all_traced), (sampled, "samples", all_sampled)):
        found = roles_of(doings) if doings and whole else None
        if found is not None and len(found.roles) > 1:
            return Found(found, by, notes)
    raise InputError(_why_not(traced, sampled, notes, all_traced=all_traced, all_sampled=all_sampled))


def _why_not(
    traced: Sequence[Doing], sampled: Sequence[Doing], notes: Sequence[str], *, all_traced: bool, all_sampled: bool
) -> str:
    if not traced and not sampled:
        return "; ".join(notes[:4]) or "nothing was recorded of any role"
    if len({one.role for one in [*traced, *sampled]}) < 2:
        return "there is one role: name several (ROLE=PATH), or mark the phases of the loop with record_function"
    if not all_traced and not all_sampled:
        return f"of some roles nothing can be read: {'; '.join(notes[:4])}"
    return (
        "the recordings share no moment: record all roles at one time (each under whystall run, whose samples are of "
        "the whole run)"
    )


def _of_traces(source: Source, notes: list[str], *, cache: bool) -> Iterator[Doing]:
    manifest = read_manifest([source.path])
    readers, unusable = installed_readers()
    notes += unusable
    traces: list[Trace] = []
    for path in trace_files(source.path, readers, notes):
        try:
            found = [one for one in load_traces(path, cache=cache, readers=readers) if holds_work(one)]
            traces += as_stated(found, manifest.of([place_of(path)]), notes)
        except InputError as error:
            notes.append(str(error))
    places, _, told = of_each_rank([facts_of(trace, alone=len(traces) == 1) for trace in traces], windows=False)
    notes += told
    for trace in (traces[own[-1]] for own in places):
        facts = facts_of(trace, alone=True)
        work, communication = _worked(trace)
        if not len(work.begin):
            notes.append(f"{trace.name}: nothing computes in it: what Python does by itself is not seen as work")
        whole = Doing(
            role=source.role or OTHER,
            process=f"{source.path}/{trace.name}",
            begin=facts.start_ns,
            end=facts.end_ns,
            work=work,
            communication=communication,
            steps=_stretches(trace.steps),
            step_name=trace.steps_from,
        )
        yield from [whole] if source.role else _by_phase(trace, whole)


def _worked(trace: Trace) -> tuple[Stretches, Stretches]:
    """When any device of a process (or its CPU, of a job without) computes or copies, and when it only communicates."""
    if trace.device_events.is_empty():
        account = cpu_account(trace)
        if account is None:
            none = np.zeros(0, np.int64)
            return Stretches(none, none), Stretches(none, none)
        timeline = account.work
    else:
        start = trace.device_events["ts_ns"].to_numpy()
        end = start + trace.device_events["duration_ns"].to_numpy()
        timeline = class_timeline(start, end, classify(trace.device_events, ()).class_of)
    work = intervals.COMPUTE_RUNS | intervals.MEMORY_RUNS
    return _in_state(timeline, work), _in_state(timeline, intervals.ONLY_COMMUNICATION)


def _in_state(timeline: Timeline, counted: np.ndarray) -> Stretches:
    at = np.flatnonzero(counted[timeline.states])
    return Stretches.of(timeline.times[at], timeline.times[at + 1], PAUSE_NS)


def _by_phase(trace: Trace, whole: Doing) -> Iterator[Doing]:
    """The activity of a process in each of the phases that it marks, and outside of them."""
    names = trace.annotations["name"].cast(pl.String)
    known = {name: phase_named(name) for name in names.unique().to_list()}
    phases = names.replace_strict(known, return_dtype=pl.String)
    left = whole.work, whole.communication
    for phase in _INNERMOST_FIRST:
        marks = trace.annotations.filter(phases == phase)
        if marks.is_empty():
            continue
        own = _stretches(marks)
        inside = Stretches.of(own.begin, own.end)
        yield Doing(
            role=phase,
            process=whole.process,
            begin=whole.begin,
            end=whole.end,
            work=left[0].both(inside),
            communication=left[1].both(inside),
            steps=own,
            step_name=str(marks["name"][0]),
        )
        left = left[0].without(inside), left[1].without(inside)
    none = np.zeros(0, np.int64)
    yield Doing(OTHER, whole.process, whole.begin, whole.end, *left, Stretches(none, none))


def _stretches(table: pl.DataFrame) -> Stretches:
    begin = table["ts_ns"].to_numpy()
    return Stretches(begin, begin + table["duration_ns"].to_numpy())


def _of_samples(role: str, samples: RunSamples) -> Doing:
    """A watched process's activity, step by step: its passes are placed at the end of a step, which waits before them.

    If no passes were observed, the time that the process was on a core is placed there.
    """
    steps = samples.steps
    columns = {name: steps[name].fill_null(0).to_numpy() for name in steps.columns}
    nothing = np.zeros(len(steps), np.int64)
    passes = sum((columns.get(f"{part}_us", nothing) for part in ("forward", "backward", "optimizer")), nothing)
    heard = np.maximum(passes, columns.get("device_us", nothing))
    worked = heard if heard.any() else columns.get("cpu_us", nothing)
    duration = columns["duration_us"]
    end_us = columns["end_us"] if "end_us" in columns else np.cumsum(duration)
    end = samples.began_unix_ns + end_us * 1_000
    begin = end - duration * 1_000
    work = Stretches.of(end - np.clip(worked, 0, duration) * 1_000, end, PAUSE_NS)
    return Doing(
        role=role,
        process=f"{Path(samples.name).name}-{samples.began_unix_ns}",
        begin=int(begin[0]),
        end=int(end[-1]),
        work=work,
        communication=Stretches(nothing[:0], nothing[:0]),
        steps=Stretches(begin, end),
        step_name=_STEP,
    )
