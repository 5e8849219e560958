from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from whystall.probe.clock import FEWEST, MOST, WARM_UPS, DeviceClock, HostClock, measure


class Scripted:
    """A clock whose calls take what the script says, the last entry for ever."""

    def __init__(self, *times: int) -> None:
        self.times = list(times)

    def time_ns(self, call: Callable[[], object]) -> int:
        call()
        return self.times.pop(0) if len(self.times) > 1 else self.times[0]


def test_the_best_and_the_median_of_the_repeats() -> None:
    timing = measure(lambda: None, Scripted(9, 3, 100, 5, 7), seconds=1e-9)
    assert (timing.repeats, timing.best_ns, timing.median_ns) == (5, 3, 7)


def test_short_calls_are_repeated_for_the_time_given() -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1

    assert measure(call, Scripted(10**7), seconds=0.2).repeats == 20
    assert calls == 20 + WARM_UPS


def test_there_are_never_fewer_than_five_nor_more_than_a_thousand() -> None:
    assert measure(lambda: None, Scripted(10**10), seconds=0.1).repeats == FEWEST
    assert measure(lambda: None, Scripted(1), seconds=100).repeats == MOST


def test_a_clock_that_stands_still_gives_no_infinite_rate() -> None:
    assert measure(lambda: None, Scripted(0), seconds=1e-9).best_ns == 1


def test_the_hosts_clock_reads_before_and_after() -> None:
    ticks = iter([1_000, 1_250])
    assert HostClock(lambda: next(ticks)).time_ns(lambda: None) == 250


def test_the_devices_clock_counts_milliseconds_between_events() -> None:
    """With a stand-in for torch: no device is at hand."""
    log: list[str] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            log.append("record")

        def synchronize(self) -> None:
            log.append("synchronize")

        def elapsed_time(self, _other: Event) -> float:
            return 0.0125

    class Torch:
        class cuda:  # noqa: N801 - torch's own name
            Event: Any

    Torch.cuda.Event = Event
    taken = DeviceClock(Torch).time_ns(lambda: log.append("call"))
    assert taken == pytest.approx(12_500, abs=1)
    assert log == ["record", "call", "record", "synchronize"]
