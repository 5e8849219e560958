"""Python between operators: on the thread that launches, or between the parts of a step."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from whystall.analysis.host_states import HostState
from whystall.analysis.run_results import RunSummary, SampledLine
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed, Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.circumstances import circumstances, is_given_one_sample
from whystall.diagnosis.detectors.episodes import (
    annotation_around,
    annotation_around_nodes,
    collected_ns,
    episode,
    mostly_within,
    named_times,
    outermost,
    silent_episodes,
)
from whystall.diagnosis.detectors.host_calls import hidden
from whystall.diagnosis.detectors.host_optimizers import work_on_state
from whystall.diagnosis.detectors.input_waits import waited_for_iterator
from whystall.diagnosis.detectors.launching import launching
from whystall.diagnosis.detectors.python_kinds import is_of_its_file, kind_of_python
from whystall.diagnosis.detectors.python_work import PythonWork, python_work
from whystall.diagnosis.detectors.samples import (
    LEAST_SEEN,
    MOST_STRETCHED,
    OF_OBJECTS,
    between_fetches,
    from_stack_samples,
    is_logging,
    is_saving,
    is_torchs,
    lines_of_one_rank,
    lines_where,
    measured_runs,
    opened_to_log,
    share_of,
    time_in,
)
from whystall.diagnosis.detectors.stretches import count_of_stretches, long_python, soft_stretch_ns
from whystall.diagnosis.detectors.traced import saved_of_python
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of, looks_in
from whystall.replay.graph import Mask
from whystall.run_folder.samples import BEFORE, CALLED
from whystall.trace.steps import OPTIMIZER_STEP, is_of_an_engine
from whystall.vocabulary.compiled_code import EITHER
from whystall.vocabulary.python_work import work_of
from whystall.vocabulary.signals import SIGNALS

CAUSE: Final = cause_beside(__name__)
# The only known fact is that the host does it occasionally.
_UNNAMED: Final = Remedy(
    text="Record Python stacks (with_stack=True, or whystall run) to see what it is. Do it less often, in a thread or "
    "process beside the steps, or where the device has work queued.",
    patch=None,
    risk=None,
)
# torch's own Python for reading a file of tensors, copying a model, or collecting its state, in a step.
_OF_FILES_AND_COPIES: Final = re.compile(
    r"^torch\.(serialization|_weights_only_unpickler|storage):|:(__deepcopy__|_rebuild_\w+)$"
    r"|^torch\.nn\.modules\.module:(\w*state_dict|_?named_\w+|load)$"
)
_OBSERVES: Final = "work outside torch in its passes or its optimizer's step, for example in a hook"
_SELDOM: Final = 0.1
_PARTS: Final = ("forward", "backward", "optimizer")
_WAITS: Final = re.compile(
    r"(^|[.: ])(sched_yield|acquire_read|_process_input_queue|recv\w*|poll|select|get|wait|sleep)\b"
)
_MOST_SPREAD: Final = CAUSE.threshold("most_spread")
_OF_A_LINE: Final = CAUSE.threshold("of_a_line")
_CALLS_TORCH: Final = CAUSE.threshold("calls_torch")
_OF_A_FUNCTION: Final = CAUSE.threshold("of_a_function")
_LONG_CALL_NS: Final = CAUSE.threshold("long_call_ns")
_SLOWED_BY_PROFILER: Final = CAUSE.threshold("slowed_by_profiler")
_MOSTLY_WAITS: Final = CAUSE.threshold("mostly_waits")
_IDLE_STEPS: Final = CAUSE.threshold("idle_steps")
_FOLLOWED_NS: Final = int(CAUSE.threshold("followed_ns"))
_MOSTLY_FOLLOWED: Final = CAUSE.threshold("mostly_followed")
_OF_THE_MODEL: Final = CAUSE.threshold("of_the_model")
_MODULE: Final = "nn.Module: "
_FEWEST_FOLLOWED: Final = int(CAUSE.threshold("fewest_followed"))
# The cost of following varies from call to call by this factor; the shortest calls do least of their own.
_ALIKE: Final = 1.5
_SHORTEST: Final = 0.1

_OFFLOADED: Final = "an optimizer that steps on the host"
_OR_COLLECTED: Final = "its own work or its garbage collection, which only Python stacks distinguish"


def in_trace(case: Case) -> Iterator[Replayed]:
    """Long stretches of Python on the thread that launches, with nothing else going on."""
    for rank in case.ranks:
        nodes = long_python(case, rank) & ~_episodic(case, rank)
        if (launched := launching(case, rank)) is not None:
            nodes &= ~launched.strewn
        nodes = _at_work(case, rank, nodes)
        begin, end, _ = rank.optimizer_steps
        stepping = nodes & case.host_within(rank, begin, end)
        found = _without_python(case, rank, stepping) if stepping.any() else None
        if found is not None and found.detail == _OFFLOADED:  # which has a remedy and a price of its own
            yield found
            nodes &= ~stepping
        if nodes.any():
            yield _without_python(case, rank, nodes)


def _at_work(case: Case, rank: RankCase, nodes: Mask) -> Mask:
    """Long Python, without the stretches in which an inference engine may wait for requests or for other processes.

    An engine may wait if a stretch lasts several usual steps, or if a waiting function takes most of the time.
    """
    if not is_of_an_engine(rank.trace.steps_from) or not nodes.any():
        return nodes
    work = python_work(case, rank, nodes)
    if work is not None and work.share >= _MOSTLY_WAITS and _WAITS.search(work.function):
        return np.zeros_like(nodes)
    usual = float(np.median(rank.trace.steps["duration_ns"].to_numpy()))
    return nodes & (soft_stretch_ns(case, rank) <= _IDLE_STEPS * usual)


def in_trace_of_a_cpu(case: Case) -> Iterator[Replayed]:
    """The same in the steps of a job without an accelerator, outside the optimizer, which has a cause of its own.

    Samples of the whole run outweigh it. If a trace shows no operators in the steps, the time between them is unknown.
    """
    for rank in case.ranks:
        computing = case.in_window(case.host_state(rank, HostState.DISPATCH))
        if case.sampled(rank) is not None or not computing.any():
            continue
        begin, end, _ = rank.optimizer_steps
        nodes = long_python(case, rank) & ~_episodic(case, rank) & ~case.host_within(rank, begin, end)
        nodes = _at_work(case, rank, nodes)
        if nodes.any():
            found = _without_python(case, rank, nodes)
            alike = (*found.could_be, "episodic.logging") if found.could_be else ()
            yield replace(found, uncertainty=_SLOWED_BY_PROFILER, if_hidden=None, could_be=alike)


def _without_python(case: Case, rank: RankCase, nodes: Mask) -> Replayed:
    per_step = case.time_of(nodes)
    collected = collected_ns(case, rank)
    # Python's own counters give a watched run's collection time.
    known = rank.analysis.signals.get("python_stacks") or (collected is not None and collected < _SELDOM * per_step)
    work = python_work(case, rank, nodes)
    beneath = () if work is None else (evidence.text("the costliest function in it", _told(work)),)
    within = annotation_around_nodes(case, rank, nodes)
    of_optimizer = within is not None and OPTIMIZER_STEP.search(within) is not None
    kind = work.kind if work is not None else (work_of(within or "") or "optimizer") if of_optimizer else None
    known = known or kind == "offloaded"
    holds = circumstances(case)
    if kind is None and "when_inference" in holds and _is_of_the_model(case, rank, nodes):
        kind = "served_model" if "when_serving" in holds else "model"
    followed = _followed_ns(case, rank, nodes)
    return Replayed(
        cause=CAUSE.id,
        detail=_OFFLOADED if kind == "offloaded" else "" if known else _OR_COLLECTED,
        attributed_ns=per_step,
        evidence=(
            evidence.time("Python between operators, in long stretches", per_step, case.events_of(nodes), per=case.per),
            evidence.count("such stretches", count_of_stretches(case, rank, nodes), per=case.per),
            *beneath,
            *mostly_within(case, rank, nodes),
            *(
                (evidence.time("in calls that the profiler followed, all alike", followed, per=case.per),)
                if followed
                else ()
            ),
        ),
        remedy=CAUSE.remedies[kind] if kind is not None else None,
        removal=case.without(nodes | work_on_state(case, rank) if kind == "offloaded" else nodes),
        floor=case.without(nodes) if kind == "offloaded" else None,
        ceiling=case.without(nodes | work_on_state(case, rank, gradients=True)) if kind == "offloaded" else None,
        method="replay: the optimizer's state stays on the device"
        if kind == "offloaded"
        else "replay: without the stretches of Python",
        code=code_of(case, nodes),
        ranks=(rank.rank,),
        uncertainty=0.2,
        confidence=0.9,
        missing=() if known else (SIGNALS["python_stacks"].name,),
        could_be=() if known else ("host.gc",),
        rivals=("host.launch-bound", "host.sync", "input.synchronous-loader"),
        if_hidden=hidden(rank, "Python takes a large part of the host's time")
        if not followed
        else f"calls of Python that the profiler followed one by one, all alike, take {followed / 1e6:.3g} ms "
        f"{case.per_step}: how much of it is there without the profiler is not known; record without Python stacks, or "
        "let whystall run sample the job",
        nameless=bool(followed),
    )


def _is_of_the_model(case: Case, rank: RankCase, nodes: Mask) -> bool:
    """Whether most of it lies within calls of the model's modules."""
    begin, end, _ = rank.intervals(rank.host_named(lambda name: name.startswith(_MODULE), ("python_functions",)))
    inside = nodes & case.host_within(rank, begin, end)
    return case.time_of(inside) > _OF_THE_MODEL * case.time_of(nodes)


def _followed_ns(case: Case, rank: RankCase, nodes: Mask) -> int:
    """Time per step of Python calls that the profiler followed, if all take about the same time; else 0.

    Following any call costs the profiler about the same, and the trace shows it as the caller's time. The share of that
    cost in a stretch of short calls is unknown; calls with work of their own differ.
    """
    first, last = rank.offsets["python_functions"]
    event = case.replayed.event[case.in_window(nodes)]
    rows = np.unique(event[(event >= first) & (event < last)]) - first
    apart = np.diff(np.sort(rank.trace.python_functions["ts_ns"].to_numpy()[rows]))
    close = apart[apart <= _FOLLOWED_NS]
    if len(close) < _FEWEST_FOLLOWED:
        return 0
    alike = np.minimum(close, _ALIKE * np.quantile(close, _SHORTEST))
    followed = int(alike.sum()) // max(case.steps, 1)
    return followed if followed > _MOSTLY_FOLLOWED * case.time_of(nodes) else 0


def _told(work: PythonWork) -> str:
    return f"{work.function} ({work.share:.0%})"


def _episodic(case: Case, rank: RankCase) -> Mask:
    """Python in annotations or calls that other rules cover: checkpoints, logging, evaluation, compilation."""
    return case.host_within(rank, *named_times(rank, "checkpoint", "evaluation", "logging", "compilation"))


def without_a_name(case: Case) -> Iterator[Replayed]:
    """Long unnamed Python in a minority of the steps: a garbage collection, or logging.

    Recorded stacks, if any, give the lines.
    """
    for silent in silent_episodes(case):
        rank, others = silent.rank, ~silent.saves & ~silent.collects
        if not others.any() or is_of_an_engine(rank.trace.steps_from):  # which may have had no request
            continue
        begin, end = silent.begin[others], silent.end[others]
        step = np.searchsorted(rank.trace.steps["ts_ns"].to_numpy(), outermost(begin, end), side="right")
        known = bool(rank.analysis.signals.get("python_stacks"))
        around = annotation_around(rank, begin, end)
        what = f"in {len(np.unique(step))} of {len(rank.trace.steps)} steps the host is at something long"
        yield episode(
            case,
            rank,
            CAUSE.id,
            begin,
            end,
            code=code_of(case, case.host_within(rank, begin, end)),
            confidence=0.85,
            detail=f"{what} within {around}" if around else what if known else f"{what} that no event names",
            missing=() if known else (SIGNALS["python_stacks"].name,),
            could_be=("host.gc",) if known else ("host.gc", "episodic.logging", "episodic.checkpoint"),
            remedy=None if known else _UNNAMED,
            if_hidden=f"{what}, while the device has work queued: leave it",
        )


def in_samples(case: Case) -> Iterator[Sampled]:
    """Lines outside forward, backward and optimizer that are neither torch's nor logging's; within, those that run."""
    for run in measured_runs(case):
        others = [*between_fetches(case, run), *opened_to_log(run), *waited_for_iterator(run)[0]]
        lines = [line for line in run.places if _is_own_python(line) and line not in others]
        of_models = _of_models(run, lines)
        lines = [line for line in lines if line not in of_models]
        # Compiled code holds the lock to its end, and is found at the line after it, as Python is.
        in_calls = {CALLED, BEFORE} if _is_compiled(case, run) else {CALLED}
        called = [line for line in lines if line.leaf in in_calls]
        running = [line for line in lines if line.leaf not in in_calls]
        # A collection is found at the line that set it off, and its time is known.
        seen = max(share_of(running) - run.shares.get("gc", 0.0), 0.0)
        share = min(time_in(run, running), seen * MOST_STRETCHED)
        hooked = _in_parts_alone(case, run)
        within = [line for line in run.places if _runs_in_a_part(line) and line not in hooked]
        beneath = [line for line in run.places if _is_in_another_library(line) and line not in hooked] + of_models
        idle = min(time_in(run, called), max(_recorded_python(case, run, called) - share, 0.0))
        under = min(time_in(run, beneath), _recorded_python(case, run, beneath, unseen=0))
        beneath = beneath if under > 0 else []
        share = (share + idle + under + time_in(run, hooked) + time_in(run, within)) * (
            1 - saved_of_python(case.facts.python_tools)[1]
        )
        chosen = [*(lines if idle > 0 else running), *hooked, *within, *beneath]
        if share >= LEAST_SEEN and not (share < _MOST_SPREAD and _is_spread(chosen, run.places)):
            rivals = ("host.gc", "episodic.logging", "input.synchronous-loader", "host.cpu-contention")
            kinds = {
                "Python between the parts of a step": share_of(lines),
                "Python in its passes or its optimizer's step, as on no other rank": share_of(hooked),
                "Python of its own in its passes or its optimizer's step": share_of(within),
                _OBSERVES: under,
            }
            what = max(kinds, key=lambda one: kinds[one])
            found = from_stack_samples(CAUSE.id, run, chosen, share, what, rivals)
            remedy = _remedy_of(chosen)
            if remedy is None and _calls_model_for_one(case, run, chosen):
                remedy = CAUSE.remedies["one_sample"]
            elif remedy is None and what == _OBSERVES:
                remedy = CAUSE.remedies["observed"]
            yield replace(found, remedy=remedy)


def _remedy_of(lines: list[SampledLine]) -> Remedy | None:
    """The remedy for most of it, where the functions or lines show its kind."""
    kind = kind_of_python(lines)
    return None if kind is None else CAUSE.remedies[kind]


def _is_spread(lines: list[SampledLine], places: list[SampledLine]) -> bool:
    """Whether no line and no function holds most of it: a little in each line of a loop is the language's own cost.

    For a line that mostly computes, a library call that runs the whole step, the functions inside count.
    """
    by_line: defaultdict[tuple[str, int | str], float] = defaultdict(float)
    by_function: defaultdict[tuple[str, str], float] = defaultdict(float)
    everything: defaultdict[tuple[str, int], float] = defaultdict(float)
    python: defaultdict[tuple[str, int], float] = defaultdict(float)
    for line in places:
        everything[line.file, line.line] += line.share
    for line in lines:
        python[line.file, line.line] += line.share
    for line in lines:
        at = line.file, line.line
        computes = python[at] < everything[at] / 2
        by_line[line.file, line.leaf if computes else line.line] += line.share
        by_function[line.file, line.leaf if computes else line.function] += line.share
    whole = share_of(lines)
    return max(by_line.values()) < _OF_A_LINE * whole and max(by_function.values()) < _OF_A_FUNCTION * whole


def _in_parts_alone(case: Case, run: RunSummary) -> list[SampledLine]:
    """The user's work of a rank within the parts of a step that no other rank does there, a hook for instance."""
    rank, lines = lines_of_one_rank(case) or (None, [])
    return [line for line in lines if rank == run.rank and line.part in _PARTS and not _is_library(line)]


def _runs_in_a_part(line: SampledLine) -> bool:
    """Whether a function of the user's was found running in a pass or the optimizer's step, calling nothing.

    It held the interpreter's lock for longer than the operators of a model keep it between them. A module of a library
    that it calls has a function of the same name (``forward``), in another file.
    """
    own = is_of_its_file(line) and line.leaf.rpartition(":")[2] == line.function and line.leaf not in {CALLED, BEFORE}
    return own and line.part in _PARTS and not _is_library(line) and not is_logging(line)


def _calls_model_for_one(case: Case, run: RunSummary, lines: list[SampledLine]) -> bool:
    """Whether most of the time is at a line that calls the model with one sample at a time."""
    if not any(is_given_one_sample(rank) for rank in case.ranks if rank.rank == run.rank):
        return False
    by_line: defaultdict[tuple[str, int], float] = defaultdict(float)
    for line in lines:
        by_line[line.file, line.line] += line.share
    most = max(by_line, key=lambda at: by_line[at])
    return any(is_torchs(line.leaf) for line in run.places if (line.file, line.line) == most)


def _is_in_another_library(line: SampledLine) -> bool:
    """Whether the innermost function at a line of a pass or the optimizer's step belongs to another library than torch.

    Only a recording shows whether that function computes itself or calls torch's operators.
    """
    away = line.leaf not in {CALLED, BEFORE} and not is_torchs(line.leaf) and not _runs_in_a_part(line)
    return away and line.part in _PARTS and not is_logging(line)


def _of_models(run: RunSummary, lines: list[SampledLine]) -> list[SampledLine]:
    """The lines at which a library other than torch calls torch: a model outside the training passes.

    Its functions were found at a line at which torch's were found, too. Only a recording shows whether they compute
    themselves or call torch's operators.
    """
    everything: defaultdict[tuple[str, int], float] = defaultdict(float)
    torchs: defaultdict[tuple[str, int], float] = defaultdict(float)
    for line in lines_where(run, lambda line: line.part == "other"):
        everything[line.file, line.line] += line.share
        if _is_library(line):
            torchs[line.file, line.line] += line.share
    return [
        line
        for line in lines
        if line.leaf not in {CALLED, BEFORE}
        and not is_torchs(line.leaf)
        and not is_of_its_file(line)
        and torchs[line.file, line.line] >= _CALLS_TORCH * everything[line.file, line.line]
    ]


def _is_compiled(case: Case, run: RunSummary) -> bool:
    """Whether code that torch compiled was recorded on the rank."""
    return any(
        bool(rank.host_named(lambda name: name.startswith(EITHER), ("operators",)).any())
        for rank in case.ranks
        if rank.rank == run.rank
    )


def _is_own_python(line: SampledLine) -> bool:
    others = is_logging(line) or is_saving(line) or OF_OBJECTS.search(line.text)  # which have causes of their own
    return line.part == "other" and not _is_library(line) and not others


def _is_library(line: SampledLine) -> bool:
    return is_torchs(line.leaf) and not _OF_FILES_AND_COPIES.search(line.leaf)


def _recorded_python(case: Case, run: RunSummary, called: list[SampledLine], *, unseen: int = 1) -> float:
    """The part of a step in which a recording of the rank shows Python for long at such lines, and no operator.

    A line in a call without the interpreter's lock may be in an operator of torch's, which is no Python; the pauses
    between operators, which a profiler lengthens, are not its own either. The lengthening of recorded steps is spread
    over the pauses, so that many short ones count for nothing and a long one counts.
    """
    for rank in case.ranks:
        if rank.rank == run.rank and case.graph is not None:
            long = long_python(case, rank) & (soft_stretch_ns(case, rank) >= _LONG_CALL_NS)
            outermost = rank.trace.operators["parent"].is_null().to_numpy()
            begin, end = case.window_on(rank)
            at = rank.trace.operators["ts_ns"].to_numpy()[outermost]
            operators = int(np.count_nonzero((at >= begin) & (at < end)))
            longer = max(case.recorded_ns - run.mean_ns * case.steps, 0) / max(operators, 1)
            pauses = int(np.count_nonzero(case.in_window(long))) / max(case.steps, 1)
            time = max(case.time_of(long) - pauses * longer, 0.0)
            return _share_at(case, rank, long, called, unseen) * time / max(run.mean_ns, 1)
    return 0.0


def _share_at(case: Case, rank: RankCase, long: Mask, lines: list[SampledLine], unseen: int) -> float:
    """The share of samples in recorded stretches of Python that lie at some lines, outside of torch's functions.

    ``unseen`` more samples are assumed there: with few samples the share is unknown. None is assumed for a model's
    lines, which mostly call operators.
    """
    looks = looks_in(case, rank, case.in_window(long))
    count = sum(seen for _, seen in looks)
    at = {(line.file, line.line) for line in lines}
    here = sum(seen for one, seen in looks if (one.file, one.line) in at and not is_torchs(one.leaf))
    return (here + unseen) / max(count + unseen, 1)


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace", "device_events", "launch_calls", "operators")),
        Finder(in_trace_of_a_cpu, ("trace", "no_device", "operators", "steps")),
        Finder(without_a_name, ("trace", "device_events")),
        Finder(in_samples, ("samples", "no_device")),
    ),
)
