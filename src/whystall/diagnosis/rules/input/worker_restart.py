"""Workers that are restarted for every epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed, Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.input_waits import SURE_OF_SPIKES, input_waits, spiked, spiked_on_device
from whystall.diagnosis.detectors.loader import (
    LEFT_OF_FETCH,
    epochs_begin,
    fetches_from_workers,
    handling_workers,
    last_of_a_row,
    waiting_nodes,
)
from whystall.diagnosis.detectors.stretches import recurrence
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rule import Finder, Rule
from whystall.vocabulary.signals import SIGNALS

CAUSE: Final = cause_beside(__name__)
# The remedy for new workers helps little against single slow samples, and vice versa: both together do.
_EITHER: Final = Remedy(
    text=f"{CAUSE.remedy} If the long fetches do not begin epochs, single samples take long: batches made further "
    "ahead hide these.",
    patch=f"{CAUSE.patch[:-1]}, prefetch_factor=8)" if CAUSE.patch else None,
    risk=CAUSE.risk,
)

# With this many loaders with workers, mostly for one epoch each, every epoch made its own.
_MANY_LOADERS: Final = 8


def in_trace(case: Case) -> Iterator[Replayed]:
    """Fetches from workers that take many times as long as the usual one, where workers may start."""
    for rank in case.ranks:
        found = fetches_from_workers(case, rank)
        if found is None or not found[2].any():
            continue
        begin, end, spikes = found
        waits = waiting_nodes(case, rank, begin[spikes], end[spikes])
        starts = case.host_within(rank, *handling_workers(rank, int(begin.min())))
        nodes = waits | starts
        per_step = case.time_of(nodes)
        known = epochs_begin(rank, begin, np.flatnonzero(last_of_a_row(spikes))) or bool(case.facts.loaders)
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.time(
                    "in fetches that took more than five times the usual one, and in starting and ending workers",
                    per_step,
                    case.events_of(nodes),
                    per=case.per,
                ),
            ),
            removal=case.without(nodes, np.where(starts, 0.0, LEFT_OF_FETCH)),
            ceiling=case.without(nodes),
            method="replay: workers kept alive from epoch to epoch",
            recurrence=recurrence(case, rank, begin[last_of_a_row(spikes)]),
            ranks=(rank.rank,),
            uncertainty=0.15,
            confidence=0.8 if known else 0.6,
            could_be=() if known else ("input.heavy-tail",),
            missing=() if known else (SIGNALS["python_stacks"].name,),
            remedy=None if known else _EITHER,
            rivals=("input.too-few-workers", "host.gc", "host.python"),
        )


def in_samples(case: Case) -> Iterator[Sampled]:
    """Single long fetches of a loader whose workers are not kept."""
    for found in spiked(case, "input.worker-restart", SURE_OF_SPIKES):
        if any(waits.begun is not None for waits in input_waits(case)):
            yield replace(found, remedy=CAUSE.remedies["one_iterator"], detail="a new iterator for each batch")
        else:
            yield replace(found, remedy=CAUSE.remedies["one_loader"]) if _made_anew(case) else found


def in_slow_steps(case: Case) -> Iterator[Sampled]:
    """The same in slow steps of a job with an accelerator."""
    yield from spiked_on_device(case, "input.worker-restart")


def _made_anew(case: Case) -> bool:
    """Whether loaders are made, used for an epoch or so, and dropped."""
    loaders = [loader for loader in case.facts.loaders if loader.get("workers")]
    used = sum(int(loader.get("epochs") or 0) > 1 for loader in loaders)
    return len(loaders) >= _MANY_LOADERS and 2 * used < len(loaders)


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace",)),
        Finder(in_samples, ("samples", "no_device")),
        Finder(in_slow_steps, ("samples", "device_events")),
    ),
)
