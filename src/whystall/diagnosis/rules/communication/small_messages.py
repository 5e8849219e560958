"""Many collectives that each cost their latency."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Code, Replayed, Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.circumstances import circumstances
from whystall.diagnosis.detectors.collectives import (
    EXCHANGE,
    POINT_TO_POINT,
    Collectives,
    are,
    collectives,
    ended_ns,
    launching,
    spent_ns,
    transfer_ns,
    waited_and_moved_ns,
    without_gaps,
)
from whystall.diagnosis.detectors.host_calls import count_per_step
from whystall.diagnosis.detectors.issuers import issuer_of_most
from whystall.diagnosis.detectors.messages import latency_ns, loud_steps, shorten, small_bytes
from whystall.diagnosis.detectors.samples import (
    OF_OBJECTS,
    code_of_lines,
    from_samples,
    lines_where,
    measured_runs,
    share_of,
)
from whystall.diagnosis.detectors.sent_again import broadcast_again
from whystall.diagnosis.detectors.synced_norms import NORMS, exchange
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Change, Mask

CAUSE: Final = cause_beside(__name__)
_BUCKET_BYTES: Final = int(CAUSE.threshold("bucket_bytes"))
_LEAST_SMALL: Final = CAUSE.threshold("least_small")
_NEARLY_ALL: Final = CAUSE.threshold("nearly_all")
_PARTLY_LATENCY: Final = CAUSE.threshold("partly_latency")
_LEAST_OF_SAMPLES: Final = CAUSE.threshold("least_of_samples")
_OF_ISSUER: Final = CAUSE.threshold("of_issuer")
_ELSEWHERE: Final = CAUSE.threshold("elsewhere")
_WRAPPED: Final = re.compile(r"DistributedDataParallel|FSDP|FullyShard|DeepSpeed|Megatron")
_DISTRIBUTED: Final = re.compile(r"^torch\.distributed\b")


# The share of the time at such a line that goes away with tensors in place of objects: at least, as expected.
_WITH_TENSORS: Final = (0.25, 0.6)


# A run of this many is pieces of one whole.
_FEWEST_AT_ONCE: Final = 4
# Within this many latencies a model computes nothing.
_AT_ONCE: Final = 4


@dataclass(slots=True)
class _Bucketed:
    """The collectives that are worth joining.

    The durations with them joined, their nodes and those of the calls that launch them, and how many there are.
    """

    duration: NDArray[np.float64]
    bodies: Mask
    calls: Mask
    most: int = 0
    left: int = 1
    bytes: int = 0
    unsized: bool = field(default=False)


def in_trace(case: Case) -> Iterator[Replayed | Sampled]:
    """The same bytes in buckets. For a job without an accelerator samples of the whole run measure the gain."""
    latency = latency_ns(case)
    if latency is None:
        return
    recorded = case.replayed.duration.astype(np.float64)
    joined = _Bucketed(recorded, np.zeros(len(recorded), np.bool_), np.zeros(len(recorded), np.bool_))
    for rank in case.ranks:
        _join(case, rank, latency, joined)
    if not joined.most:
        return
    found = _in_buckets(case, latency, joined)
    share = _sampled_share(case)
    if share is None:
        yield found
        return
    saved = share * _part_of_all(case, joined.bodies) * (1 - joined.left / joined.most)
    yield Sampled(
        cause=found.cause,
        attributed_ns=found.attributed_ns,
        evidence=found.evidence,
        removal=found.removal,
        saved=(saved * _LEAST_OF_SAMPLES, saved, saved + (1 - saved) * _ELSEWHERE),
        method="samples: the share of stack samples in collectives, the small ones' part of it, but for one bucket",
        ranks=found.ranks,
        confidence=found.confidence,
        missing=found.missing,
        remedy=found.remedy,
        rivals=found.rivals,
        code=_asked_at(case),
    )


def _asked_at(case: Case) -> Code:
    """The lines at which the threads are found in collectives, on all ranks."""
    runs = [run for rank in case.ranks if (run := case.sampled(rank)) is not None]
    return code_of_lines([line for run in runs for line in run.places if _DISTRIBUTED.search(line.leaf)])


def _join(case: Case, rank: RankCase, latency: int, joined: _Bucketed) -> None:
    """Joins a rank's small collectives, if there are enough of them."""
    took = transfer_ns(case)
    found = collectives(case, rank)
    nodes = found.node
    # Needless broadcasts are another cause's.
    bound = (nodes >= 0) & ~are(found, POINT_TO_POINT) & ~are(found, EXCHANGE) & ~broadcast_again(rank, found)[0]
    small = (found.size >= 0) & (found.size < small_bytes(rank))
    short = took[np.maximum(nodes, 0)] < 2 * latency
    # Where no size is known and nearly all are short, a long one was held up, not large.
    blind = bool((found.size < 0).all()) and np.count_nonzero(short & bound) >= _NEARLY_ALL * np.count_nonzero(bound)
    joinable = bound & (found.size >= 0) & (found.size <= _BUCKET_BYTES / 4)
    bound &= small | short | blind
    joined.unsized |= bool((found.size[bound] < 0).any())
    steps = max(len(rank.trace.steps), 1)
    count, size = int(np.count_nonzero(bound)) // steps, int(np.maximum(found.size[bound], 0).sum()) // steps
    if count < _LEAST_SMALL:
        return
    # Collectives between them that a bucket holds several of go into it as well.
    bound |= joinable & (took[np.maximum(nodes, 0)] < _PARTLY_LATENCY * latency)
    count, size = int(np.count_nonzero(bound)) // steps, int(np.maximum(found.size[bound], 0).sum()) // steps
    joined.most, joined.bytes = max(joined.most, count), max(joined.bytes, size)
    buckets = max(-(-size // _BUCKET_BYTES), _together(case, found, bound, latency) / steps, 1)
    joined.left = max(joined.left, round(buckets))
    left = min(buckets / count, 1.0)
    at = nodes[bound]
    joined.bodies[at] = True
    # Latency is paid once a bucket; what goes over the wire stays the same.
    body = np.where(found.size[bound] < 0, took[at] * left, np.maximum(took[at] - latency, 0))
    shorten(case, joined.duration, at, body + latency * left)
    calls = launching(case, rank, found, bound)
    joined.calls |= calls
    joined.duration = np.where(calls, joined.duration * left, joined.duration)


def _together(case: Case, found: Collectives, chosen: NDArray[np.bool_], latency: int) -> int:
    """How many times collectives follow each other at once: compute in between depends on their results.

    0 where few of them do so: those that a backward pass enqueues one by one can all be joined.
    """
    at = np.flatnonzero(chosen)
    at = at[np.argsort(found.start[at], kind="stable")]
    runs = 1 + int(np.count_nonzero(found.start[at[1:]] - ended_ns(case, found, at)[:-1] > _AT_ONCE * latency))
    return runs if len(at) >= _FEWEST_AT_ONCE * runs else 0


def _in_buckets(case: Case, latency: int, joined: _Bucketed) -> Replayed:
    kind = None if "when_serving" in circumstances(case) else issuer_of_most(case, joined.bodies, least=_OF_ISSUER)
    if kind == NORMS:
        return _without_norms(case, latency)
    whole = case.with_transfers(joined.bodies)
    _, loud = loud_steps(case)
    per_step = spent_ns(case, joined.bodies)
    events = case.events_of(joined.bodies)
    found = Replayed(
        cause=CAUSE.id,
        attributed_ns=per_step,
        evidence=(
            evidence.count("small collectives", joined.most, events, per=case.per),
            *(
                (evidence.count("bytes in one, on average", round(joined.bytes / joined.most)),)
                if not joined.unsized
                else ()
            ),
            evidence.time("latency of one", latency),
            evidence.time("spent in them", per_step, per=case.per),
            *loud,
        ),
        removal=Change(duration=joined.duration.astype(np.int64), lag=without_gaps(case, whole)),
        ceiling=replace(case.without(whole | joined.calls), lag=without_gaps(case, whole)),
        method="replay: the same bytes in buckets of 25 MiB",
        ranks=tuple(rank.rank for rank in case.ranks),
        uncertainty=0.2,
        confidence=0.9,
        remedy=CAUSE.remedies[kind] if kind is not None else _of_its_own_loop(case),
        rivals=("communication.exposed", "communication.low-bandwidth", "communication.straggler"),
    )
    return (
        replace(found, uncertainty=0.4, confidence=0.6, missing=("sizes of the messages",)) if joined.unsized else found
    )


def _without_norms(case: Case, latency: int) -> Replayed:
    """SyncBatchNorm's exchange of statistics: the next layer needs each result, so that buckets cannot join them."""
    found = exchange(case)
    count = count_per_step(case, found.bodies) / len(case.ranks)
    per_step, events = spent_ns(case, found.bodies), case.events_of(found.bodies)
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=per_step,
        evidence=(
            evidence.count("collectives of SyncBatchNorm, forward and backward", count, events, per=case.per),
            evidence.count("its waits of the host", found.waits_per_step, per=case.per),
            evidence.time("latency of one", latency),
            evidence.time("spent in them", per_step, per=case.per),
        ),
        removal=found.removal,
        method="replay: without the exchange of statistics, its waits of the host, and what is called for it",
        code=code_of(case, found.others),
        ranks=tuple(rank.rank for rank in case.ranks),
        uncertainty=0.2,
        confidence=0.9,
        detail="SyncBatchNorm exchanges statistics in each of its layers",
        remedy=CAUSE.remedies[NORMS],
        rivals=("communication.exposed", "communication.low-bandwidth", "communication.straggler"),
    )


def _of_its_own_loop(case: Case) -> Remedy | None:
    return CAUSE.remedies["flattened"] if _by_its_own_loop(case) else None


def _by_its_own_loop(case: Case) -> bool:
    """Whether a watched job calls collectives itself: no library that has buckets marks its passes."""
    marked = any(bool(rank.host_named(lambda name: bool(_WRAPPED.search(name))).any()) for rank in case.ranks)
    return not marked and all(case.sampled(rank) is not None for rank in case.ranks)


def _sampled_share(case: Case) -> float | None:
    """On a job without an accelerator.

    The share of time in collectives, by samples, of the rank with the least of it.
    """
    runs = [case.sampled(rank) for rank in case.ranks]
    shares = [
        sum(line.share for line in run.places if _DISTRIBUTED.search(line.leaf)) for run in runs if run is not None
    ]
    return min(shares) if shares and len(shares) == len(runs) and min(shares) > 0 else None


def _part_of_all(case: Case, nodes: Mask) -> float:
    """The share of the time in collectives that some of them take: samples do not separate them."""
    every = np.zeros(len(nodes), np.bool_)
    for rank in case.ranks:
        every |= (found := collectives(case, rank)).nodes(case, np.ones(len(found.node), np.bool_))
    return sum(waited_and_moved_ns(case, nodes)) / max(sum(waited_and_moved_ns(case, every)), 1)


def of_objects(case: Case) -> Iterator[Sampled]:
    """Lines that exchange objects, on the rank that is found there least: the others wait for it as well."""
    seen = [
        (share_of(lines), run, lines)
        for run in measured_runs(case)
        if (lines := lines_where(run, lambda line: bool(OF_OBJECTS.search(line.text))))
    ]
    if not seen or len(seen) < len(case.runs):
        return
    share, run, lines = min(seen, key=lambda each: (each[0], each[1].rank))
    most = max(share for share, _, _ in seen)
    least, expected = (share * part for part in _WITH_TENSORS)
    yield from_samples(
        CAUSE.id,
        run,
        expected,
        (least, expected, most),
        evidence=(
            evidence.share("of the stack samples that found the thread exchanging objects", share),
            evidence.time("time in it, on average", round(share * run.mean_ns), per="step"),
        ),
        code=code_of_lines(lines),
        ranks=tuple(one.rank for _, one, _ in seen),
        detail="objects are pickled, and their sizes sent before them",
        method="samples: the share of the thread's stack samples, for tensors in place of objects",
        confidence=0.8,
        remedy=CAUSE.remedies["objects"],
        rivals=("communication.straggler", "host.python"),
    )


RULE = Rule(CAUSE, (Finder(in_trace, ("trace",)), Finder(of_objects, ("samples", "no_device"))))
