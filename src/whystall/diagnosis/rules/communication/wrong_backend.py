"""Gradients of a job on accelerators that gloo adds up on the host, or that one process gathers from its devices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.intervals import ANY, class_timeline
from whystall.analysis.kernel_classes import COMMUNICATION, COMPUTE
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Candidate, Sampled, Standing
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.messages import SMALL_BYTES
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.vocabulary.copies import BOTH_WAYS

CAUSE: Final = cause_beside(__name__)
_LEFT: Final = CAUSE.threshold("left")
_GLOO: Final = "gloo:"
_DATA_PARALLEL: Final = ("nn.Module: DataParallel_", "torch/nn/parallel/data_parallel.py")


def in_trace(case: Case) -> Iterator[Candidate]:
    """Collectives of gloo where no library of the device has any, and modules that are copied to several devices."""
    for rank in case.ranks:
        if not rank.on_device:
            continue
        # Many jobs use gloo for small side messages, and NCCL or RCCL for tensors.
        if not (rank.workings.classified.class_of == COMMUNICATION).any():
            yield from _through_the_host(case, rank)
        yield from _one_process(case, rank)


def _through_the_host(case: Case, rank: RankCase) -> Iterator[Sampled]:
    calls = rank.host_named(lambda name: name.startswith(_GLOO), ("operators", "annotations"))
    begin, end, _ = rank.intervals(calls)
    if not _uncovered_ns(case, rank, begin, end):
        return
    copied_from, copied_until = _copies(rank)
    waited = _uncovered_ns(case, rank, np.concatenate([begin, copied_from]), np.concatenate([end, copied_until]))
    share = waited / max(case.window_ns, 1)
    per_step = waited // max(case.steps, 1)
    yield Sampled(
        cause=CAUSE.id,
        attributed_ns=per_step,
        evidence=(
            evidence.count("collectives of gloo", len(begin)),
            evidence.time(
                "of them, and of large copies to the host and back, with no kernel running",
                waited // max(case.steps, 1),
                per=case.per,
            ),
        ),
        saved=(share * (1 - _LEFT) / 2, share * (1 - _LEFT), share),
        method="the time in which collectives of gloo or their copies run and the device computes nothing",
        ranks=(rank.rank,),
        confidence=0.85,
        rivals=("host.sync", "communication.exposed"),
    )


def _copies(rank: RankCase) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Begin and end of the large copies between host and device, where they go both ways as gloo's do."""
    events = rank.trace.device_events
    large = events["bytes"].fill_null(0).to_numpy() >= SMALL_BYTES
    ways = [large & rank.device_named(re.compile("|".join(way)).search) for way in BOTH_WAYS]
    chosen = ways[0] | ways[1] if ways[0].any() and ways[1].any() else large & False
    begin = events["ts_ns"].to_numpy()[chosen]
    return begin, begin + events["duration_ns"].to_numpy()[chosen]


def _uncovered_ns(case: Case, rank: RankCase, begin: NDArray[np.int64], end: NDArray[np.int64]) -> int:
    """How long some of the intervals are open in the replayed window while no kernel computes."""
    first, last = case.window_on(rank)
    begin, end = np.clip(begin, first, last), np.clip(end, first, last)
    events = rank.trace.device_events
    computes = rank.workings.classified.class_of == COMPUTE
    starts = events["ts_ns"].to_numpy()[computes]
    ends = starts + events["duration_ns"].to_numpy()[computes]
    starts, ends = np.clip(starts, first, last), np.clip(ends, first, last)
    either = _open_ns(np.concatenate([begin, starts]), np.concatenate([end, ends]))
    return either - _open_ns(starts, ends)


def _open_ns(begin: NDArray[np.int64], end: NDArray[np.int64]) -> int:
    return class_timeline(begin, end, np.zeros(len(begin), np.uint8)).total(ANY)


def _one_process(case: Case, rank: RankCase) -> Iterator[Standing]:
    devices = np.unique(rank.trace.device_events["device"].to_numpy())
    copied = rank.host_named(lambda name: any(part in name for part in _DATA_PARALLEL), ("python_functions",))
    if len(devices) < 2 or not copied.any():
        return
    yield Standing(
        cause=CAUSE.id,
        attributed_ns=0,
        evidence=(
            evidence.text("the model is wrapped in", "torch.nn.DataParallel"),
            evidence.count("devices that one process drives", len(devices)),
        ),
        severity="minor",
        nodes=case.nodes(rank, host=copied),
        detail="torch.nn.DataParallel copies the model to all devices in every step",
        ranks=(rank.rank,),
        confidence=0.9,
    )


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events")),))
