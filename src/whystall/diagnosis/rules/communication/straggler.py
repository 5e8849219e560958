"""One rank that the others wait for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from math import comb
from typing import Final

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.host_states import HostState
from whystall.analysis.kernel_classes import COMPUTE
from whystall.analysis.run_results import RunSummary, SampledLine
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import OF_ONE_RANK, Replayed, Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.collectives import has_stages, in_rings
from whystall.diagnosis.detectors.late_rank import late_rank, uneven_tokens
from whystall.diagnosis.detectors.lateness import meetings
from whystall.diagnosis.detectors.rank_differences import uneven_kernels, work_times
from whystall.diagnosis.detectors.samples import code_of_lines, from_samples
from whystall.diagnosis.detectors.stages import stages
from whystall.diagnosis.finding import Evidence, Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.replay.graph import Change, Mask, NodeKind
from whystall.trace.link import rows_of

CAUSE: Final = cause_beside(__name__)
_LATE_IN: Final = CAUSE.threshold("late_in")
_WAITED_FOR: Final = CAUSE.threshold("waited_for")
_LEAST_CHANCE: Final = CAUSE.threshold("least_chance")
_LEAST_CHANCE_BESIDE: Final = CAUSE.threshold("least_chance_beside")
_SLOWER_DEVICE: Final = CAUSE.threshold("slower_device")
_SURELY: Final = CAUSE.threshold("surely")
_ON_A_CPU: Final = Remedy(
    text="Look at what that rank does more of: at its data (more or longer samples), at lines that only it comes to, "
    "at other programs on its cores. Where it only has more to do, share that out; the others then do a part of it, "
    "and less is gained.",
    patch=None,
    risk=None,
)
_FEWEST_COMPARED: Final = 4
# Peers come to a line as well if they are found at it this often, relative to the rank with more work.
_COME_TO: Final = 0.1
_Shares = defaultdict[tuple[str, int], float]
_SHORT: Final = CAUSE.threshold("short")
_LEAST_LATE: Final = CAUSE.threshold("least_late")


def in_trace(case: Case) -> Iterator[Replayed]:
    """One rank that makes the others wait in nearly every collective, or of a pipeline one that works longer."""
    if uneven_kernels(case) is not None:
        return
    if has_stages(case):
        yield from _of_a_pipeline(case)
        return
    if in_rings(case):
        yield from _of_a_ring(case)
        return
    late = _last_to_come(case)
    if late is None:
        return
    rank, share, wait_ns, instances, chance = late
    peers = [one.rank for one in case.ranks if one.rank != rank]
    works_longer = _works_longer(case, rank, peers)
    if works_longer is False or chance >= (_LEAST_CHANCE if works_longer is None else _LEAST_CHANCE_BESIDE):
        return
    told = (
        evidence.share("of the waiting in collectives is for it", share),
        evidence.time("the others wait for it", wait_ns, per=case.per),
        evidence.count("collectives compared", instances),
    )
    yield _kept_waiting(case, rank, peers, wait_ns, told)


def _of_a_pipeline(case: Case) -> Iterator[Replayed]:
    """The rank whose device works longest beside the replicas of its stage.

    In a pipeline every rank waits for its neighbours, so that the last one is no evidence. If all stages of one
    pipeline take longer, the reason is their input, and no rank.
    """
    found = stages(case)
    if found is None or len(found.ranks[0]) < 2:
        return
    usual = {rank: stage_ns for own, stage_ns in zip(found.ranks, found.stage_ns, strict=True) for rank in own}
    beyond = {rank: found.per_step_ns[rank] / max(usual[rank], 1) for rank in usual}
    rank = max(beyond, key=lambda one: (beyond[one], -one))
    mates = next(one for one in zip(*found.ranks, strict=True) if rank in one)
    usual_beyond = float(np.median([beyond[one] for one in mates if one != rank]))
    if beyond[rank] < _SLOWER_DEVICE * usual_beyond or not usual_beyond:
        return
    peers = found.replicas_of(rank)
    if _works_longer(case, rank, peers) is False:
        return
    more_ns = found.per_step_ns[rank] - usual[rank]
    told = (evidence.time("its device computes longer than those of its stage's replicas by", more_ns, per=case.per),)
    yield _kept_waiting(case, rank, peers, more_ns, told)


def _of_a_ring(case: Case) -> Iterator[Replayed]:
    """The rank whose device works longest. Each waits for the one before it, so that the last one is no evidence."""
    lasts = {
        rank.rank: case.time_of(case.nodes(rank, device=rank.workings.classified.class_of == COMPUTE))
        for rank in case.ranks
    }
    rank = max(lasts, key=lambda one: (lasts[one], -one))
    peers = [one for one in lasts if one != rank]
    usual = int(np.median([lasts[one] for one in peers]))
    if lasts[rank] < _SLOWER_DEVICE * usual or _works_longer(case, rank, peers) is False:
        return
    more_ns = lasts[rank] - usual
    told = (evidence.time("its device computes longer than those of the others by", more_ns, per=case.per),)
    yield _kept_waiting(case, rank, peers, more_ns, told)


def _kept_waiting(case: Case, rank: int, peers: Sequence[int], wait_ns: int, told: tuple[Evidence, ...]) -> Replayed:
    graph = case.replayed
    duration, device_ratio = _as_fast_as_peers(case, rank, peers)
    host = (graph.kind == NodeKind.HOST) & (graph.rank == rank)
    ratio = _host_ratio(case, rank, peers) if device_ratio is not None else _prompt_ratio(case, rank, wait_ns)
    duration = np.where(host, np.floor(duration * ratio).astype(np.int64), duration)
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=wait_ns,
        evidence=(
            evidence.text("the rank that others wait for", f"rank {rank}"),
            *told,
            *(
                (Evidence(what="its device's work, times its peers'", value=round(device_ratio, 4), unit="x"),)
                if device_ratio is not None and device_ratio > 1
                else ()
            ),
            Evidence(what="its host's time, times its peers'", value=round(1 / max(ratio, 1e-9), 4), unit="x"),
        ),
        removal=Change(duration=duration),
        method="replay: that rank's kernels and host as fast as its peers'",
        ranks=(rank,),
        uncertainty=0.15,
        confidence=0.95,
        could_be=("device.degraded",) if device_ratio is not None and device_ratio >= _SLOWER_DEVICE else (),
        remedy=None if device_ratio is not None else _ON_A_CPU,
        symptom_of=OF_ONE_RANK,
        rivals=("communication.exposed", "communication.low-bandwidth", "device.throttled"),
        if_hidden=f"rank {rank} arrives last and the others wait for it, but its own work is hardly longer than "
        "theirs: if it were as fast as they are, almost nothing would be saved",
    )


def _works_longer(case: Case, rank: int, peers: Sequence[int]) -> bool | None:
    """Whether a rank's host or device works longer in a step than its peers', beyond the variation of steps.

    Its lateness in collectives is weaker evidence: hosts that do not wait for each other drift apart by chance, and a
    rank that is behind once stays so for many collectives. ``None``: there are too few steps.
    """
    compared = [one for one in case.ranks if one.rank == rank or one.rank in peers]
    if any(len(one.trace.steps) < _FEWEST_COMPARED for one in compared):
        return None
    graph = case.replayed
    at_work = (graph.kind == NodeKind.HOST) & (graph.state != HostState.COMMUNICATION)
    own_work = (graph.kind == NodeKind.DEVICE) & (case.transfer_of < 0)
    for nodes in (at_work, own_work):
        per_step = {one.rank: _per_step(case, one, nodes) for one in compared}
        steps = min(len(values) for values in per_step.values())
        others = np.median([values[:steps] for number, values in per_step.items() if number != rank], axis=0)
        more = per_step[rank][:steps] - others
        if more.mean() > 0 and more.mean() >= _SURELY * more.std(ddof=1) / np.sqrt(steps):
            return True
    return False


def _per_step(case: Case, rank: RankCase, nodes: Mask) -> NDArray[np.float64]:
    """How long some nodes of a rank take in each of its steps but the first, which starts things up.

    Device work is of the step that launched it: a host that is ahead begins the next one while it runs.
    """
    graph = case.replayed
    own = np.flatnonzero(nodes & (graph.rank == rank.rank))
    begin = rank.trace.steps["ts_ns"].to_numpy()
    step = np.searchsorted(begin, graph.own_times(rank.rank, graph.start[own]), side="right") - 1
    launched = rows_of(rank.trace.device_events["step"]) if rank.on_device else np.zeros(0, np.int32)
    on_device = graph.kind[own] == NodeKind.DEVICE
    step[on_device] = launched[graph.event[own[on_device]]]
    sums = np.bincount(step[step >= 0], weights=graph.duration[own][step >= 0], minlength=len(begin))
    return np.asarray(sums[1:], np.float64)


def _as_fast_as_peers(case: Case, rank: int, peers: Sequence[int]) -> tuple[NDArray[np.int64], float | None]:
    """The durations with a rank's kernels as fast as its peers', and how much slower they are; ``None`` without any."""
    graph = case.replayed
    own = next(one for one in case.ranks if one.rank == rank)
    if not own.on_device:
        return graph.duration, None
    table = work_times(case, copies=True)
    theirs = table.filter(pl.col("rank").is_in(list(peers)))
    median = theirs.group_by("name", "nth").agg(pl.col("ns").median().alias("usual"))
    mine = table.filter(pl.col("rank") == rank).join(median, on=["name", "nth"], how="left", maintain_order="left")
    target = own.trace.device_events["duration_ns"].to_numpy().astype(np.float64)
    usual = mine.select(pl.coalesce("usual", "ns").alias("usual"))["usual"].to_numpy()
    target[mine["row"].to_numpy()] = usual
    wanted = case.device_values(own, target, np.inf)
    duration = np.minimum(graph.duration, np.where(np.isfinite(wanted), wanted, graph.duration)).astype(np.int64)
    return duration, float(mine["ns"].sum()) / max(float(np.sum(usual)), 1.0)


def _prompt_ratio(case: Case, rank: int, wait_ns: int) -> float:
    """How much shorter a rank's host work must be for the others not to wait for it."""
    graph = case.replayed
    host = (graph.kind == NodeKind.HOST) & (graph.state != HostState.COMMUNICATION) & (graph.rank == rank)
    return max(1 - wait_ns / max(case.time_of(host), 1), 0.0)


def _host_ratio(case: Case, rank: int, peers: Sequence[int]) -> float:
    """How much shorter a rank's host work would be if it were as fast as its peers' (1: it is)."""
    graph = case.replayed
    host = case.in_window((graph.kind == NodeKind.HOST) & (graph.state != HostState.COMMUNICATION))
    sums = {one.rank: int(graph.duration[host & (graph.rank == one.rank)].sum()) for one in case.ranks}
    usual = float(np.median([sums[one] for one in peers]))
    return min(usual / max(sums[rank], 1), 1.0)


def _last_to_come(case: Case) -> tuple[int, float, int, int, float] | None:
    """The rank that makes the others wait most: its share of the waiting, the waiting per step, how many collectives.

    The last value is the probability that some rank does so by chance: a delay that is passed on from one group to
    another counts once.
    """
    met = meetings(case)
    # The meetings that make up nearly all of the waiting: in short ones chance decides who comes last.
    ordered = sorted(met, key=lambda one: one.wait_ns)
    waited = np.cumsum([one.wait_ns for one in ordered])
    long = [one for one, sum_ns in zip(ordered, waited.tolist(), strict=True) if sum_ns > _SHORT * waited[-1]]
    if not long:
        return None
    counts, waits = Counter[int](), Counter[int]()
    for one in long:
        counts[one.rank] += 1
        waits[one.rank] += one.wait_ns
    rank = min(waits, key=lambda one: (-waits[one], one))
    share = waits[rank] / sum(waits.values())
    # In a job of many groups most meet without it: its delay is passed on, and causes most of the waiting.
    if counts[rank] < _LATE_IN * len(long) and share < _WAITED_FOR:
        return None
    own = [one for one in long if not one.handed_on]
    its = [one.wait_ns for one in own if one.rank == rank]
    chance = _by_chance(len(its), len(own), len(case.ranks))
    return rank, share, sum(its) // max(case.steps, 1), len(met), chance


def _by_chance(count: int, meetings: int, ranks: int) -> float:
    """The probability that some rank comes last at least ``count`` times when each is equally likely to.

    It is the permutation test in which the ranks of every collective change places independently. The number of times
    that a rank is last is binomial then, so that no permutation need be drawn; for any of ``ranks`` ranks the
    probability is at most ``ranks`` times that.
    """
    last = 1 / ranks
    tail = sum(
        comb(meetings, times) * last**times * (1 - last) ** (meetings - times) for times in range(count, meetings + 1)
    )
    return min(ranks * tail, 1.0)


def in_samples(case: Case) -> Iterator[Sampled]:
    """A rank whose training thread works longer in every step than those of the others, which wait for it."""
    found = late_rank(case)
    if found is None or found.late < _LEAST_LATE or found.idle < found.late:
        return
    if uneven_tokens(case, found) is not None:
        return
    slowest, late = found.run, found.late
    # The excess is shared out as far as it lies at lines that the peers come to as well.
    alike = _at_the_same_lines(slowest, found.others)
    expected = alike * found.shared + (1 - alike) * late
    yield from_samples(
        CAUSE.id,
        slowest,
        late,
        evidence=(
            evidence.text("the rank that others wait for", f"rank {slowest.rank}"),
            evidence.time("its training thread works", round(found.work_ns), per="step"),
            evidence.time("that of the others, in the median, works", round(found.usual_ns), per="step"),
            evidence.share("of the time the others' training threads are on no core", found.idle),
        ),
        saved=(min(late * 0.7, found.shared * 0.9), expected, min(late * 1.2, found.idle)),
        code=code_of_lines(_longer_there(slowest, found.others)),
        remedy=_ON_A_CPU,
        method="samples: that rank's work as long as its peers'",
        symptom_of=OF_ONE_RANK,
        rivals=("communication.exposed", "host.cpu-contention"),
    )


def _longer_there(slowest: RunSummary, others: list[RunSummary]) -> list[SampledLine]:
    """The lines at which a rank's training thread is found more often than its peers', with the excess share.

    At the lines where the peers wait for it, they are found more often themselves.
    """
    own, usual = _by_lines(slowest, others)
    more = {at: 1 - usual[at] / share for at, share in own.items() if share > usual[at]}
    return [
        msgspec.structs.replace(line, share=line.share * more[line.file, line.line])
        for line in slowest.places
        if (line.file, line.line) in more
    ]


def _by_lines(slowest: RunSummary, others: list[RunSummary]) -> tuple[_Shares, _Shares]:
    """The shares of a rank's samples by lines, and those of its peers on average."""
    usual: defaultdict[tuple[str, int], float] = defaultdict(float)
    for run in others:
        for line in run.places:
            usual[line.file, line.line] += line.share / len(others)
    own: defaultdict[tuple[str, int], float] = defaultdict(float)
    for line in slowest.places:
        own[line.file, line.line] += line.share
    return own, usual


def _at_the_same_lines(slowest: RunSummary, others: list[RunSummary]) -> float:
    """The share of a rank's work at lines that its peers come to; 0 where no line is known.

    Their frequencies at a line are relative to the work of each: a rank that waits most of a step does less of
    everything.
    """
    own, usual = _by_lines(slowest, others)
    works = float(np.median([run.on_cpu_share for run in others])) / max(slowest.on_cpu_share, 1e-9)
    both = sum(share for at, share in own.items() if usual[at] >= _COME_TO * min(works, 1.0) * share)
    return both / max(sum(own.values()), 1e-9) if own else 0.0


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "several_ranks")), Finder(in_samples, ("samples", "no_device"))))
