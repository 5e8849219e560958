"""One rank of the graph: its trace, its threads, its device events in the replayed window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.device import DeviceEvents, devices_of
from whystall.analysis.host_states import HostEvents, HostState, host_events
from whystall.analysis.hosts import backward_threads, taking_turns, training_thread
from whystall.replay.host import spans_of
from whystall.replay.talks import as_others_saw
from whystall.replay.windows import Window
from whystall.trace.model import Trace

# The busiest launching threads are drawn; a process with more of them is no training job.
_MOST_THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class DrawnRank:
    """One rank's trace, with the tables for drawing."""

    number: int
    trace: Trace
    host: HostEvents
    training: int | None
    backward: frozenset[int]
    talking: frozenset[int]
    launching: tuple[int, ...]
    devices: dict[int, DeviceEvents]
    window: Window | None

    @property
    def threads(self) -> tuple[int, ...]:
        """The threads to draw, the training thread first."""
        first = () if self.training is None else (self.training,)
        return tuple(dict.fromkeys((*first, *self.launching, *sorted(self.backward), *sorted(self.talking))))


def drawn_rank(number: int, trace: Trace, class_of: NDArray[np.uint8], window: Window | None) -> DrawnRank:
    """A rank's trace, prepared for drawing; ``class_of`` is the class of each device event."""
    on_device = not trace.device_events.is_empty()
    host = host_events(trace, collectives=not on_device)
    found = devices_of(trace, class_of)
    if window is not None:
        found = {device: events for device, full in found.items() if len((events := _within(full, window)).row)}
    threads = [events.launches.thread[events.launches.known] for events in found.values()]
    counts = np.bincount(np.concatenate([np.zeros(0, np.int32), *threads]))
    busiest = [int(thread) for thread in np.argsort(-counts, kind="stable")[:_MOST_THREADS] if counts[thread]]
    talking = np.unique(host.thread[host.state == HostState.COMMUNICATION])[:_MOST_THREADS].tolist()
    training, backward = training_thread(trace), frozenset(sorted(backward_threads(trace))[:_MOST_THREADS])
    if (turns := taking_turns(trace)) is not None and training in (None, turns[0]):
        training, backward = turns
    if talking and training is not None:
        host = as_others_saw(host, spans_of(host, training, None), training)
    return DrawnRank(
        number,
        trace,
        host,
        training,
        backward,
        frozenset(talking),
        tuple(busiest),
        found,
        window,
    )


def _within(events: DeviceEvents, window: Window) -> DeviceEvents:
    """The events that were launched in a window; those without a launch count by their start."""
    launches = events.launches
    at = np.where(launches.known, launches.start, events.start)
    kept = np.flatnonzero((at >= window[0]) & (at < window[1]))
    chosen = launches.only(kept)
    return DeviceEvents(
        events.row[kept],
        events.start[kept],
        events.end[kept],
        events.class_of[kept],
        events.stream[kept],
        events.step[kept],
        chosen,
    )
