"""Causes in communication itself: collectives that are exposed, small, or slow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis.case import Case, RankCase
from whystall.diagnosis.finding import Evidence
from whystall.diagnosis.rule import Candidate, Rule
from whystall.diagnosis.rules import facts
from whystall.diagnosis.rules.collectives import (
    EXCHANGE,
    POINT_TO_POINT,
    Collectives,
    are,
    collectives,
    launching,
    met_by_all,
    spent_ns,
    step_of,
    transfer_ns,
    without_gaps,
)
from whystall.replay.graph import Change

_SMALL_BYTES: Final = 1 << 20
_BUCKET_BYTES: Final = 25 << 20  # DistributedDataParallel's own bucket_cap_mb
_LONGEST_LATENCY_NS: Final = 500_000
_LEAST_SMALL: Final = 8  # collectives a step: fewer are not worth merging
# What one 400 Gb/s network card moves, in bytes/s. A trace does not say whether its ranks share a machine; what is far
# below even this is slow in any case (reference: causes.md, "busbw < 60 %").
_NETWORK_BYTES_PER_S: Final = 50e9
_LOW: Final = 0.6
_REACHED_OF_LINK: Final = 0.7


def exposed(case: Case) -> Iterator[Candidate]:
    """Collectives that the step waits for."""
    nodes = np.zeros(len(case.replayed.start), np.bool_)
    movable = nodes.copy()
    hidden_ns = exposed_ns = total_ns = 0
    for rank in case.ranks:
        found = collectives(case, rank)
        ours = ~are(found, POINT_TO_POINT)
        nodes |= found.nodes(case, ours)
        # What experts exchange is needed at once, and the last collective of a step has nothing left to hide behind.
        movable |= found.nodes(case, ours & ~are(found, EXCHANGE) & ~_last_of_step(rank, found))
        for device in rank.analysis.devices:
            exposed_ns += device.exposed_communication_ns // max(len(device.steps), 1)
            hidden_ns += device.compute_communication_overlap_ns // max(len(device.steps), 1)
            total_ns += device.communication_ns // max(len(device.steps), 1)
    if not nodes.any():
        return
    everything = case.with_transfers(nodes)
    loud, loud_evidence = _loud_steps(case)
    count = max(len(case.ranks), 1)
    share = hidden_ns / max(total_ns, 1)
    yield Candidate(
        cause="communication.exposed",
        attributed_ns=total_ns // count,
        evidence=(
            facts.time("communication per step and rank", total_ns // count, case.events_of(nodes)),
            facts.time("of it not behind compute", exposed_ns // count),
            facts.share("of it hidden behind compute", share),
            *loud_evidence,
        ),
        steps=loud,
        expected=case.without(case.with_transfers(movable)),
        ceiling=case.without(everything),
        method="replay: nothing waits for collectives but for the last of a step, and for what experts exchange",
        ranks=tuple(rank.rank for rank in case.ranks),
        uncertainty=0.35,
        confidence=0.9 if len(case.ranks) > 1 else 0.75,
        tier=3,
        missing=() if len(case.ranks) > 1 else ("traces of the other ranks",),
        rivals=(
            "communication.small-messages",
            "communication.low-bandwidth",
            "communication.straggler",
            "host.launch-bound",
        ),
        hidden=f"communication takes {total_ns / count / max(case.step_ns, 1):.0%} of the step's time, "
        f"{share:.0%} of it hidden behind compute, and its removal gains next to nothing: leave it",
    )


def _loud_steps(case: Case) -> tuple[tuple[str, ...], tuple[Evidence, ...]]:
    """Steps that communicate for much longer than the median step does."""
    found: dict[str, float] = {}
    for rank in case.ranks:
        for device in rank.analysis.devices:
            times = [step.communication_ns for step in device.steps]
            usual = float(np.median(times)) if len(times) >= _FEWEST_STEPS else 0.0
            loud = [step for step in device.steps if usual > 0 and step.communication_ns > _LOUD * usual]
            for step in loud:
                found[step.name] = max(found.get(step.name, 0.0), step.communication_ns / usual)
    names = sorted(found, key=lambda name: (-found[name], name))[:_MOST_LOUD]
    return tuple(names), tuple(
        facts.count(f"times the median step's communication in {name}", found[name]) for name in names[:1]
    )


_FEWEST_STEPS: Final = 4
_LOUD: Final = 1.5
_MOST_LOUD: Final = 20


def _last_of_step(rank: RankCase, found: Collectives) -> NDArray[np.bool_]:
    """The last collective of each step."""
    step = step_of(rank, found)
    order = np.lexsort((found.start, step))
    last = np.zeros(len(step), np.bool_)
    if not len(step):
        return last
    last[order[np.append(np.diff(step[order]) != 0, True)]] = True
    return last & (step >= 0)


def small_messages(case: Case) -> Iterator[Candidate]:
    """Many collectives that each cost their latency."""
    graph = case.replayed
    took = transfer_ns(case)
    latency = _latency_ns(case)
    if latency is None:
        return
    duration = graph.duration.astype(np.float64)
    bodies = np.zeros(len(duration), np.bool_)
    most = moved = 0
    unsized = False
    for rank in case.ranks:
        found = collectives(case, rank)
        nodes = found.node
        bound = (nodes >= 0) & ~are(found, POINT_TO_POINT) & ~are(found, EXCHANGE)
        small = (found.size >= 0) & (found.size < _SMALL_BYTES)
        short = took[np.maximum(nodes, 0)] < 2 * latency
        # Where no size is known and most are short, a long one was held up, not large.
        blind = bool((found.size < 0).all()) and np.count_nonzero(short & bound) * 2 > np.count_nonzero(bound)
        bound &= small | short | blind
        unsized |= bool((found.size[bound] < 0).any())
        steps = max(len(rank.trace.steps), 1)
        count, size = int(np.count_nonzero(bound)) // steps, int(np.maximum(found.size[bound], 0).sum()) // steps
        if count < _LEAST_SMALL:
            continue
        most, moved = max(most, count), max(moved, size)
        left = max(-(-size // _BUCKET_BYTES), 1) / count
        at = nodes[bound]
        bodies[at] = True
        # Latency is paid once a bucket; what goes over the wire stays the same.
        body = np.where(found.size[bound] < 0, took[at] * left, np.maximum(took[at] - latency, 0))
        _shorten(case, duration, at, body + latency * left)
        duration = np.where(launching(case, rank, found, bound), duration * left, duration)
    if not most:
        return
    took_share = _measured_share(case)
    saved = took_share * (1 - 1 / most) if took_share is not None else None
    whole = case.with_transfers(bodies)
    loud, loud_evidence = _loud_steps(case)
    per_step = spent_ns(case, bodies)
    yield Candidate(
        cause="communication.small-messages",
        attributed_ns=per_step,
        evidence=(
            facts.count("collectives per step that mostly cost their latency", most, case.events_of(bodies)),
            facts.count("bytes in one, on average", round(moved / most)),
            facts.time("latency of one", latency),
            facts.time("spent in them per step", per_step),
            *loud_evidence,
        ),
        steps=loud,
        expected=Change(duration=duration.astype(np.int64), lag=without_gaps(case, whole)),
        ceiling=case.without(whole),
        saved=(saved * _LEAST_OF_LOOKS, saved, saved + (1 - saved) * _ELSEWHERE) if saved is not None else None,
        method="replay: as many bytes in buckets of 25 MiB"
        if saved is None
        else "samples: the share of looks that found the training thread in collectives, but for one bucket",
        ranks=tuple(rank.rank for rank in case.ranks),
        uncertainty=0.4 if unsized else 0.2,
        confidence=0.6 if unsized else 0.9,
        missing=("sizes of the messages",) if unsized else (),
        rivals=("communication.exposed", "communication.low-bandwidth", "communication.straggler"),
    )


_DISTRIBUTED: Final = re.compile(r"^torch\.distributed\b")
_LEAST_OF_LOOKS: Final = 0.8
# What else takes longer while threads of a library are at work on the same cores.
_ELSEWHERE: Final = 0.2


def _measured_share(case: Case) -> float | None:
    """On a job without an accelerator: the share of time in collectives, by samples, of the rank with the least of it."""
    runs = [case.sampled(rank) for rank in case.ranks]
    shares = [
        sum(place.share for place in run.places if _DISTRIBUTED.search(place.leaf)) for run in runs if run is not None
    ]
    return min(shares) if shares and len(shares) == len(runs) and min(shares) > 0 else None


def _latency_ns(case: Case) -> int | None:
    """What the smallest collectives take, in the median: their latency; ``None`` where none is small.

    Without sizes: what the median one takes, if that is short.
    """
    transfer = transfer_ns(case)
    found: list[int] = []
    unsized: list[int] = []
    for rank in case.ranks:
        own = collectives(case, rank)
        nodes = own.node
        known = nodes >= 0
        unsized += transfer[nodes[known & (own.size < 0)]].tolist()
        small = (own.size >= 0) & (own.size < _SMALL_BYTES) & known
        if small.any():
            tiny = small & (own.size <= np.quantile(own.size[small], 0.25))
            found += transfer[nodes[tiny]].tolist()
    if found:
        return int(np.median(found))
    usual = int(np.median(unsized)) if unsized else 0
    return usual if 0 < usual <= _LONGEST_LATENCY_NS else None


def low_bandwidth(case: Case) -> Iterator[Candidate]:
    """Large collectives that move far less than any link should."""
    graph = case.replayed
    shortest = transfer_ns(case)
    latency = _latency_ns(case) or 0
    expected = graph.duration.astype(np.float64)
    least, best = expected.copy(), expected.copy()
    chosen = np.zeros(len(expected), np.bool_)
    unsure = chosen.copy()
    rates: list[float] = []
    for rank in case.ranks:
        found = collectives(case, rank)
        met = met_by_all(case, found)
        peak = rank.device_work.peak if rank.on_device else None
        link = peak.link_gb_per_s * 1e9 if peak is not None and peak.link_gb_per_s else _NETWORK_BYTES_PER_S
        nodes = found.node
        large = (found.size >= _SMALL_BYTES) & (found.ranks > 1) & (nodes >= 0) & ~are(found, POINT_TO_POINT)
        rows = np.flatnonzero(large)
        wire = found.size[rows] * _bus_factor(found, rows)
        rate = wire / np.maximum(shortest[nodes[rows]] - latency, 1) * 1e9
        slow = rate < _LOW * min(_NETWORK_BYTES_PER_S, link)
        unsure[nodes[rows[slow & ~met[rows]]]] = True
        at = nodes[rows[slow]]
        rates += rate[slow].tolist()
        chosen[at] = True
        for out, target in (
            (expected, _REACHED_OF_LINK * link),
            (least, _REACHED_OF_LINK * min(_NETWORK_BYTES_PER_S, link)),
            (best, link),
        ):
            _shorten(case, out, at, latency + wire[slow] / target * 1e9)
    if not chosen.any():
        return
    blind = bool(unsure.any())
    per_step = spent_ns(case, chosen)
    yield Candidate(
        cause="communication.low-bandwidth",
        attributed_ns=per_step,
        evidence=(
            facts.bandwidth("bus bandwidth of large collectives, in the median", float(np.median(rates))),
            facts.time("spent in them per step", per_step, case.events_of(chosen)),
        ),
        expected=Change(duration=expected.astype(np.int64)),
        least=Change(duration=least.astype(np.int64)),
        ceiling=Change(duration=best.astype(np.int64)),
        method="replay: the same bytes at 70 % of the link's bandwidth (at the least: of a 400 Gb/s network)",
        ranks=tuple(rank.rank for rank in case.ranks),
        confidence=0.5 if blind else 0.85,
        unnamed=blind,
        missing=("traces of the other ranks",) if blind else (),
        hidden="large collectives take long: over a slow link, or because a rank that was not recorded comes late; "
        "record all ranks to tell which"
        if blind
        else None,
        rivals=("communication.exposed", "communication.straggler", "communication.small-messages"),
    )


def _bus_factor(found: Collectives, rows: NDArray[np.intp]) -> NDArray[np.float64]:
    """Bytes on the wire per byte of the message (nccl-tests, doc/PERFORMANCE.md)."""
    size = np.maximum(found.ranks[rows], 1).astype(np.float64)
    reduces = np.array([bool(re.search(r"all_?reduce", found.kind[row], re.IGNORECASE)) for row in rows], np.bool_)
    return np.where(reduces, 2.0, 1.0) * (size - 1) / size


def _shorten(
    case: Case, duration: NDArray[np.float64], nodes: NDArray[np.int64], target_ns: NDArray[np.float64]
) -> None:
    """Gives collectives (or their transfers) a new length, where that is shorter."""
    transfer = case.transfer_of[nodes]
    at = np.where(transfer >= 0, transfer, nodes)
    duration[at] = np.minimum(duration[at], target_ns)


RULES: Final = (
    Rule("communication.small-messages", ("trace",), small_messages),
    Rule("communication.low-bandwidth", ("trace", "device"), low_bandwidth),
    Rule("communication.exposed", ("trace",), exposed),
)
