"""What the samples of a whole run show beside its input: collections, saving, Python and logging by line, contention.

Samples are of the host. On a job with an accelerator host time can be hidden behind queued work, which only a trace tells:
there they name nothing by themselves unless there is no trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from whystall.analysis.host_states import HostState
from whystall.analysis.results import RunSummary, SampledLine
from whystall.analysis.run_summary import BEFORE, CALLED
from whystall.diagnosis.case import FEWEST_SAMPLED_STEPS, Case
from whystall.diagnosis.rule import Candidate, Rule
from whystall.diagnosis.rules import facts
from whystall.diagnosis.rules.samples import (
    AWAITS,
    NINE_IN_TEN,
    SPREAD,
    code_of_places,
    from_samples,
    measured_runs,
    places_where,
    share_of,
)
from whystall.diagnosis.rules.training import FUSED_ON_CPU

_LOGGING_TEXT: Final = re.compile(
    r"\bprint\(|\blog(ger|ging)?\.|\.(write|writelines|flush|info|debug|warning|error|log|add_scalars?|add_histogram)\("
    r"|fsync|json\.dump|wandb|mlflow|tqdm",
)
_LOGGING_LEAF: Final = re.compile(r"^(logging|tensorboard|wandb|mlflow|tqdm|json|csv|rich)[.:]")
_TORCH_LEAF: Final = re.compile(r"^torch[.:_]")
# Fewer looks say too little of a line.
_FEWEST_LOOKS_SHARE: Final = 0.01
# Taken off its core so often a second, a thread competes for it.
_SWITCHES_PER_S: Final = 30
_LEAST_OFF_CPU: Final = 0.08
# Other processes that use this much of a core, on average, take it from the job.
_OTHERS_BUSY: Final = 0.25
# Cores that other threads of the job must use to be in the way.
_LEAST_BESIDE: Final = 0.05
# A rank that works this share of a step longer than the others holds them up.
_LEAST_LATE: Final = 0.08
_PARTS: Final = ("input", "forward", "backward", "optimizer", "other")
# Looks and clock differ by chance, and by no more than this: beyond it the looks are too few.
_MOST_STRETCHED: Final = 1.5
# So much longer than the recorded ones are steps that were not recorded, not noise.
_UNLIKE: Final = 3
# How long a disk takes differs from run to run.
_DISK_LOW, _DISK_HIGH = 0.75, 1.3


def collections(case: Case) -> Iterator[Candidate]:
    """Pauses of Python's garbage collector."""
    for run in measured_runs(case):
        share = run.shares.get("gc", 0.0)
        if share > 0:
            yield from_samples(
                "host.gc",
                run,
                share,
                part="gc",
                evidence=(
                    facts.time("garbage collection per step, on average", round(share * run.mean_ns)),
                    facts.share("of the steps' time", share),
                ),
                rivals=("host.python",),
            )


def saving(case: Case) -> Iterator[Candidate]:
    """Checkpoints: the time in torch.save, and in functions that are named after it."""
    for run in measured_runs(case):
        named = places_where(run, lambda place: place.part in ("checkpoint", "save"))
        share = max(run.shares.get("save", 0.0), share_of(named))
        if share > 0:
            yield from_samples(
                "episodic.checkpoint",
                run,
                share,
                part="save",
                evidence=(
                    facts.time("saving per step, on average", round(share * run.mean_ns)),
                    facts.share("of the steps' time", share),
                ),
                code=code_of_places(named),
                saved=(share * _DISK_LOW, share, min(share * _DISK_HIGH, 0.99)),
                rivals=("host.python", "episodic.logging"),
            )


def evaluation(case: Case) -> Iterator[Candidate]:
    """Functions that are named after evaluation."""
    for run in measured_runs(case):
        named = places_where(run, lambda place: place.part == "evaluation")
        share = share_of(named)
        if share >= _FEWEST_LOOKS_SHARE:
            yield _by_looks("episodic.evaluation", run, named, share, "evaluation", ("host.python",))


def _is_logging(place: SampledLine) -> bool:
    return bool(_LOGGING_LEAF.search(place.leaf) or _LOGGING_TEXT.search(place.text))


def _logs(place: SampledLine) -> bool:
    parts = ("other", "forward", "optimizer")
    return place.part == "logging" or (place.part in parts and _is_logging(place))


def logging(case: Case) -> Iterator[Candidate]:
    """Lines that print, log, write or flush."""
    for run in measured_runs(case):
        lines = places_where(run, _logs)
        share = _time_in(run, lines)
        if share >= _FEWEST_LOOKS_SHARE:
            yield _by_looks("episodic.logging", run, lines, share, "logging", ("host.python", "episodic.checkpoint"))


def python(case: Case) -> Iterator[Candidate]:
    """Lines outside forward, backward and optimizer that are neither torch's nor logging's."""
    for run in measured_runs(case):
        lines = places_where(
            run, lambda place: place.part == "other" and not _TORCH_LEAF.search(place.leaf) and not _is_logging(place)
        )
        called = [place for place in lines if place.leaf == CALLED]
        running = [place for place in lines if place.leaf != CALLED]
        # A collection is found at the line that set it off, and its time is known.
        seen = max(share_of(running) - run.shares.get("gc", 0.0), 0.0)
        share = min(_time_in(run, running), seen * _MOST_STRETCHED)
        idle = min(_time_in(run, called), max(_recorded_python(case, run) - share, 0.0))
        lines = lines if idle > 0 else running
        share += idle
        if share >= _FEWEST_LOOKS_SHARE:
            rivals = ("host.gc", "episodic.logging", "input.synchronous-loader", "host.cpu-contention")
            yield _by_looks("host.python", run, lines, share, "Python between the parts of a step", rivals)


def _recorded_python(case: Case, run: RunSummary) -> float:
    """The part of a step in which a recording of the rank shows Python, and no operator, as a share of the usual step.

    A line in a call without the interpreter's lock may be in an operator of torch's, which is no Python.
    """
    for rank in case.ranks:
        if rank.rank == run.rank and case.graph is not None:
            return case.time_of(case.host_state(rank, HostState.PYTHON)) / max(run.mean_ns, 1)
    return 0.0


def _time_in(run: RunSummary, lines: list[SampledLine]) -> float:
    """The share of time that lines took: of the time of their part, which is measured, what the looks say.

    Functions that are counted as a part of their own take from parts as measured, one does not know which: beside them
    the looks alone count.
    """
    if any(place.part not in (*_PARTS, "save") for place in run.places):
        return min(
            share_of(lines), run.shares.get("other", 0.0) + share_of([one for one in lines if one.part != "other"])
        )
    return sum(_measured_part(run, part, share_of([one for one in lines if one.part == part])) for part in _PARTS)


def _measured_part(run: RunSummary, part: str, seen: float) -> float:
    """What looks saw of a part, at the length of the part as it was measured."""
    all_seen = sum(place.share for place in run.places if place.part == part)
    return seen * min(run.shares.get(part, 0.0) / max(all_seen, 1e-9), _MOST_STRETCHED)


def _by_looks(
    cause: str, run: RunSummary, lines: list[SampledLine], share: float, what: str, rivals: tuple[str, ...]
) -> Candidate:
    seen = share_of(lines)
    unsure = NINE_IN_TEN * (share * (1 - share) / max(run.looks, 1)) ** 0.5
    return from_samples(
        cause,
        run,
        share,
        evidence=(
            facts.share(f"of the looks at the training thread that found {what}", seen),
            facts.time("per step, on average", round(share * run.mean_ns)),
        ),
        code=code_of_places([place for place in lines if place.leaf not in {BEFORE, CALLED}] or lines),
        saved=(max(share - max(unsure, share * SPREAD), 0.0), share, min(share + max(unsure, share * SPREAD), 0.99)),
        method="samples: the share of looks at the training thread",
        rivals=rivals,
    )


def compilation(case: Case) -> Iterator[Candidate]:
    """Compiling, found in steps after the first."""
    for run in measured_runs(case):
        lines = places_where(run, lambda place: place.part == "compile")
        share = share_of(lines)
        if share >= _FEWEST_LOOKS_SHARE:
            yield _by_looks("host.recompile", run, lines, share, "the compiler of models", ("host.python",))


def optimizer(case: Case) -> Iterator[Candidate]:
    """An optimizer that goes through the parameters one by one; a profiler makes its many small operators look longer."""
    for run in measured_runs(case):
        share = run.shares.get("optimizer", 0.0)
        lines = places_where(run, lambda place: "_single_tensor" in place.leaf)
        if share > 0 and lines:
            yield from_samples(
                "compute.unfused-optimizer",
                run,
                share * (1 - FUSED_ON_CPU),
                evidence=(facts.share("of the steps' time in the optimizer", share),),
                code=code_of_places(lines),
                saved=(share * (1 - FUSED_ON_CPU) * 0.6, share * (1 - FUSED_ON_CPU), share),
                rivals=("host.python",),
            )


def contention(case: Case) -> Iterator[Candidate]:
    """A training thread that is taken off its core, or that runs with more threads than there are cores."""
    for run in measured_runs(case):
        waiting = sum(run.shares.get(part, 0.0) for part in ("input", "save"))
        off_cpu = max(1 - run.on_cpu_share - waiting, 0.0)
        switches_per_s = run.involuntary_switches_per_step / max(run.mean_ns / 1e9, 1e-9)
        cores, threads = case.facts.cores, case.facts.threads
        crowded = cores is not None and threads is not None and threads * case.facts.processes > cores
        others = run.other_cores
        sleeping = share_of(places_where(run, lambda place: "sleep" in place.text))
        off_cpu -= sleeping
        # Ranks of one job wait for each other off their cores: there only too many threads are proof.
        busy = others is not None and others >= _OTHERS_BUSY and case.facts.processes == 1
        if off_cpu < _LEAST_OFF_CPU or switches_per_s < _SWITCHES_PER_S or not (crowded or busy):
            continue
        yield from_samples(
            "host.cpu-contention",
            run,
            off_cpu,
            evidence=(
                facts.share(
                    "of the steps' time the training thread was on no core and waited for nothing known", off_cpu
                ),
                facts.count("times a second it was taken off its core", switches_per_s),
                *((facts.count("threads of torch", threads), facts.count("cores", cores)) if cores and threads else ()),
                *((facts.count("cores that other processes used, on average", others),) if others is not None else ()),
            ),
            saved=_without_contention(off_cpu, run.on_cpu_share, threads or 1, cores or 1, crowded=crowded),
            method="samples: time off the core",
            confidence=0.75,
            tier=1,
            rivals=("host.python", "input.cpu-bound"),
        )


def lock(case: Case) -> Iterator[Candidate]:
    """A training thread that waits for the interpreter's lock, which other threads of the job hold."""
    if case.facts.processes > 1:  # a rank that waits for others is off its core as well
        return
    for run in measured_runs(case):
        waiting = sum(run.shares.get(part, 0.0) for part in ("input", "save"))
        known = places_where(
            run,
            lambda place: (
                place.part not in ("input", "save") and (bool(AWAITS.search(place.leaf)) or "sleep" in place.text)
            ),
        )
        off_cpu = 1 - run.on_cpu_share - waiting - share_of(known)
        if off_cpu < _LEAST_OFF_CPU or run.thread_cores < _LEAST_BESIDE:
            continue
        yield from_samples(
            "host.gil",
            run,
            off_cpu,
            evidence=(
                facts.share(
                    "of the steps' time the training thread was on no core and waited for nothing known", off_cpu
                ),
                facts.count("cores that other Python threads of the job used, on average", run.thread_cores),
                facts.share("of the looks that found one of them at work", share_of(run.beside)),
            ),
            code=code_of_places(run.beside),
            saved=(off_cpu * 0.6, off_cpu, min(off_cpu * 1.15, 0.98)),
            method="samples: time off the core while other threads run Python",
            confidence=0.75,
            rivals=("host.cpu-contention", "host.python"),
        )


def _without_contention(
    off_cpu: float, on_cpu: float, threads: int, cores: int, *, crowded: bool
) -> tuple[float, float, float]:
    """The share saved without contention. Threads that wait for each other spin: how much of their time is work is not known.

    At least the job's threads, which get as much as the one that was watched, have all cores for themselves, and need
    not be waited for at the end of every parallel region; at most nothing but that one's own time stays.
    """
    if not crowded:
        return off_cpu * 0.5, off_cpu, min(off_cpu * 1.1, 0.95)
    least = min(max(1 - min(threads * on_cpu / cores, 1.0), off_cpu / 4), off_cpu)
    return least, (least + off_cpu) / 2, off_cpu


def straggler(case: Case) -> Iterator[Candidate]:
    """A rank whose training thread works longer in every step than those of the others, which wait for it."""
    runs = measured_runs(case)
    if len(runs) < 2:
        return
    work = {run.rank: run.on_cpu_share * run.mean_ns for run in runs}
    slowest = max(runs, key=lambda run: (work[run.rank], -run.rank))
    others = [run for run in runs if run is not slowest]
    usual = float(np.median([work[run.rank] for run in others]))
    step_ns = max(run.mean_ns for run in runs)
    late = (work[slowest.rank] - usual) / step_ns
    idle = float(np.median([1 - run.on_cpu_share for run in others]))
    if late < _LEAST_LATE or idle < late:
        return
    yield from_samples(
        "communication.straggler",
        slowest,
        late,
        evidence=(
            facts.text("the rank that others wait for", f"rank {slowest.rank}"),
            facts.time("its training thread works per step", round(work[slowest.rank])),
            facts.time("that of the others, in the median", round(usual)),
            facts.share("of the time the others' training threads are on no core", idle),
        ),
        saved=(late * 0.7, late, min(late * 1.2, idle)),
        method="samples: that rank's work as long as its peers'",
        rivals=("communication.exposed", "host.cpu-contention"),
    )


# Less of a recording with device events says little of a job.
_MOSTLY_EMPTY: Final = 0.1


def perturbed(case: Case) -> Iterator[Candidate]:
    """A recording in which the device hardly works, without step marks that would say what is usual."""
    for rank in case.ranks:
        if not rank.on_device or len(rank.trace.steps) > 1:
            continue
        events = rank.trace.device_events
        tables = (rank.trace.operators, rank.trace.annotations, rank.trace.python_functions, rank.trace.runtime_calls)
        starts = [int(table["ts_ns"][0]) for table in tables if len(table)]
        end = int((events["ts_ns"] + events["duration_ns"]).max())  # type: ignore[arg-type]
        whole = max(end - min([*starts, int(events["ts_ns"][0])]), 1)
        busy = sum(device.busy_ns for device in rank.analysis.devices)
        gaps = np.diff(events["ts_ns"].to_numpy())
        one_gap = bool(len(gaps)) and int(gaps.max()) * 2 > whole
        if busy >= _MOSTLY_EMPTY * whole or not one_gap:
            continue
        yield Candidate(
            cause="capture.perturbed",
            attributed_ns=whole - busy,
            evidence=(
                facts.time("length of the recording", whole),
                facts.time("of it with device events", busy),
            ),
            saved=(0.0, 0.0, 0.0),
            method="none: the recording says too little",
            ranks=(rank.rank,),
            hidden=f"the recording is mostly empty: device events fill {busy / 1e6:.3g} of {whole / 1e6:.4g} ms, and a "
            "single gap is most of the rest; record a window in which the device works",
        )


def unlike(case: Case) -> Iterator[Candidate]:
    """Recorded steps that are far shorter than those of the run: what the run loses is not among them."""
    for run in case.runs:
        rank = next((rank for rank in case.ranks if rank.rank == run.rank), None)
        if rank is None or len(rank.trace.steps) < 2 or run.measured < FEWEST_SAMPLED_STEPS:
            continue
        recorded = int(np.median(np.diff(rank.trace.steps["ts_ns"].to_numpy())))
        if recorded * _UNLIKE >= run.median_ns:
            continue
        yield Candidate(
            cause="capture.perturbed",
            attributed_ns=run.median_ns - recorded,
            evidence=(
                facts.time("a recorded step, in the median", recorded),
                facts.time("a step of the run, in the median", run.median_ns),
            ),
            saved=(0.0, 0.0, 0.0),
            method="none: the recording says too little",
            ranks=(rank.rank,),
            hidden="the recorded steps are far shorter than those of the run: what the run loses is not in the recording",
        )


RULES: Final = (
    Rule("host.gc", ("samples",), collections),
    Rule("episodic.checkpoint", ("samples",), saving),
    Rule("episodic.evaluation", ("samples",), evaluation),
    Rule("episodic.logging", ("samples",), logging),
    Rule("host.python", ("samples",), python),
    Rule("host.recompile", ("samples",), compilation),
    Rule("compute.unfused-optimizer", ("samples",), optimizer),
    Rule("host.gil", ("samples",), lock),
    Rule("host.cpu-contention", ("samples",), contention),
    Rule("communication.straggler", ("samples",), straggler),
    Rule("capture.perturbed", ("trace", "device"), perturbed),
    Rule("capture.perturbed", ("trace", "samples"), unlike),
)
