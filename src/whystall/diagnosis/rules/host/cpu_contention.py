"""A training thread that is taken off its core: by too many threads of its own, or by other processes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from whystall.analysis.run_results import RunSummary, SampledLine
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Sampled, Standing
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.samples import (
    AWAITS,
    LEAST_OFF_CORE,
    from_samples,
    measured_runs,
    off_core,
    without_others,
)
from whystall.diagnosis.finding import Evidence, Remedy
from whystall.diagnosis.gains import percent, speedup
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)
_SWITCHES_PER_S: Final = CAUSE.threshold("switches_per_s")
_OTHERS_BUSY: Final = CAUSE.threshold("others_busy")
_SURE: Final = 0.75
_RECEIVES: Final = re.compile(r":_?(recv\w*|read|readline|readinto|accept)$")
_FILLED: Final = CAUSE.threshold("filled")
_BESIDE_OTHERS: Final = Remedy(
    text="Other processes use the job's cores: end or move them, or set cores aside for the job (taskset, cpusets, "
    "what is asked of a scheduler). The job's own threads are no more than there are cores.",
    patch=None,
    risk=None,
)


@dataclass(frozen=True, slots=True)
class Contention:
    """A rank whose training thread has no core for the share ``off`` of the steps' time.

    ``own``: its owner can change that, since the job has more threads than cores, or the rank has cores of its own.
    """

    run: RunSummary
    off: float
    switches_per_s: float
    crowded: bool
    own: bool

    def __str__(self) -> str:
        return (
            f"This machine is shared: other programs use {self.run.other_cores or 0.0:.1f} cores, and the training "
            f"thread waits for a core {percent(self.off)} of the time. Without this wait steps would be "
            f"{speedup(self.off):.2f} times as fast, or more where torch's threads also wait for each other: use no "
            "more threads than there are free cores."
        )


def _waits(line: SampledLine) -> bool:
    """Whether the thread waits for something other than a core: a thread, a process, a pipe, a socket, a timer."""
    return "sleep" in line.text or bool(AWAITS.search(line.leaf) or _RECEIVES.search(line.leaf))


def contentions(case: Case) -> list[Contention]:
    """The ranks that lack cores: off the core, often switched out, and with competitors."""
    cores, threads = case.facts.cores_here or case.facts.cores, case.facts.threads
    ranks = case.facts.ranks_here or case.facts.processes
    crowded = cores is not None and threads is not None and threads * ranks > cores
    found = []
    for run in measured_runs(case):
        off = off_core(run, _waits)
        if threads == 1 and run.queued_share is not None:
            off = min(off, run.queued_share)  # a single thread that waits for no core waits for something else
        switches_per_s = run.involuntary_switches_per_step / max(run.mean_ns / 1e9, 1e-9)
        # Ranks of one job wait for each other off their cores: a single thread's wait for a core is measured
        # separately.
        told = case.facts.processes == 1 or (threads == 1 and run.queued_share is not None)
        # A job that uses all of its cores has lost none: others are busy on other cores.
        full = case.facts.processes == 1 and cores is not None and (run.own_cores or 0.0) >= _FILLED * cores
        busy = run.other_cores is not None and run.other_cores >= _OTHERS_BUSY and told and not full
        # A rank that has cores of its own, and waits for them, has them taken by something that is no rank.
        taken = case.facts.bound and (run.queued_share or 0.0) >= LEAST_OFF_CORE
        if off < LEAST_OFF_CORE or switches_per_s < _SWITCHES_PER_S:
            continue
        if crowded or busy or taken:
            found.append(Contention(run, off, switches_per_s, crowded=crowded, own=crowded or taken))
    return found


def shared_machine(case: Case) -> str:
    """The cost of other programs on the worst rank, in sentences; empty where there is none."""
    others = [one for one in contentions(case) if not one.own]
    return str(max(others, key=lambda one: one.off)) if others else ""


def in_samples(case: Case) -> Iterator[Sampled | Standing]:
    """Ranks that lack cores. The cost of other programs on a shared machine is only a note."""
    cores, threads = case.facts.cores_here or case.facts.cores, case.facts.threads
    ranks = case.facts.ranks_here or case.facts.processes
    for one in contentions(case):
        run = one.run
        told = _evidence(one, threads, cores)
        if not one.own:
            yield Standing(
                cause=CAUSE.id,
                attributed_ns=round(one.off * run.mean_ns),
                evidence=told,
                ranks=(run.rank,),
                confidence=_SURE,
                severity="info",
                detail="other programs use it",
                remedy=_BESIDE_OTHERS,
                by_others=True,
            )
            continue
        yield from_samples(
            CAUSE.id,
            run,
            one.off,
            evidence=told,
            saved=_without_contention(one.off, run.on_cpu_share, threads or 1, cores or 1, crowded=one.crowded),
            method="samples: time off the core",
            confidence=_SURE,
            tier=1,
            rivals=("host.python", "input.cpu-bound"),
            remedy=_fewer(threads or 1, cores or 1, ranks) if one.crowded else _BESIDE_OTHERS,
        )


def _evidence(one: Contention, threads: int | None, cores: int | None) -> tuple[Evidence, ...]:
    run = one.run
    told = [
        evidence.share("of the steps' time the training thread was on no core and waited for nothing known", one.off),
        evidence.count("times a second it was taken off its core", one.switches_per_s),
    ]
    if run.queued_share is not None:
        told.append(evidence.share("of the steps' time it was ready to run and got no core", run.queued_share))
    if cores and threads:
        told += [evidence.count("threads of torch", threads), evidence.count("cores", cores)]
    if run.other_cores is not None:
        told.append(evidence.count("cores that other processes used, on average", run.other_cores))
    return tuple(told)


def _fewer(threads: int, cores: int, processes: int) -> Remedy:
    """With this job's numbers: threads of torch that are more than the cores."""
    if threads == 1:
        return Remedy(
            text=f"{processes} processes of one thread share {cores} cores: start one process per core, or request a "
            f"core for each.",
            patch=f"torchrun --nproc-per-node {cores} ...",
            risk="With fewer ranks the batch of all together is smaller, unless each takes more.",
        )
    each = max(cores // processes, 1)
    of = f" in each of {processes} processes" if processes > 1 else ""
    return Remedy(
        text=f"torch has {threads} threads{of} for {cores} cores, which wait for each other in every operator: give it "
        f"one thread per core (torch.set_num_threads; OMP_NUM_THREADS in the environment).",
        patch=f"torch.set_num_threads({each})  # or OMP_NUM_THREADS={each}",
        risk=CAUSE.risk,
    )


def _without_contention(
    off_cpu: float, on_cpu: float, threads: int, cores: int, *, crowded: bool
) -> tuple[float, float, float]:
    """The share saved without contention. Threads that wait for each other spin: their work is not known.

    At least: the job's threads, each with the watched one's time, share all cores, without waits at the end of a
    parallel region. At most: only the watched thread's own time remains.
    """
    if not crowded:
        return without_others(off_cpu, min(threads, cores))
    least = min(max(1 - min(threads * on_cpu / cores, 1.0), off_cpu / 4), off_cpu)
    return least, (least + off_cpu) / 2, off_cpu


RULE = Rule(CAUSE, (Finder(in_samples, ("samples", "no_device")),))
