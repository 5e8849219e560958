"""The schedule as a state machine: when recording begins, and when it ends."""

from __future__ import annotations

import pytest

from whystall.capture.config import Schedule
from whystall.capture.windows import PATIENCE_LONG_STEPS, PATIENCE_STEPS, Action, SteadyState, Windows

MS = 1_000_000


def actions(schedule: Schedule, durations_ms: list[float]) -> list[Action]:
    windows = Windows(schedule)
    now = 0
    out = []
    for duration in durations_ms:
        now += int(duration * MS)
        out.append(windows.step_ended(int(duration * MS), now))
    return out


def test_warm_up_and_compilation_are_passed_over() -> None:
    found = actions(Schedule(wait=0, warmup=1, active=2), [9000, 4000, 3000, 100, 100, 100, 100, 100, 100, 100])
    assert found.index(Action.START) == 6  # the fourth of four steps that agree
    assert found[7:] == [Action.MARK, Action.MARK, Action.STOP]


def test_of_long_steps_two_that_agree_are_enough() -> None:
    """A run of sixteen steps of six seconds has three to be recorded, also where they differ."""
    found = actions(Schedule(), [9_000.0] + [6_000.0 + 100 * (at % 3) for at in range(9)])
    assert found.index(Action.STOP) == 7
    assert found[3:8] == [Action.START, Action.MARK, Action.MARK, Action.MARK, Action.STOP]
    differ = actions(Schedule(), [6_000.0 * (1 + at % 3) for at in range(16)])
    assert differ.index(Action.STOP) < 16
    assert differ.index(Action.START) == PATIENCE_LONG_STEPS + 1
    settling = actions(Schedule(), [9_000.0, 5_000.0, 4_000.0, 3_000.0, *[2_000.0] * 6])
    assert settling.index(Action.START) == 6


def test_wait_is_counted_from_the_steady_state() -> None:
    steady = actions(Schedule(wait=0), [100.0] * 12).index(Action.START)
    assert actions(Schedule(wait=3), [100.0] * 12).index(Action.START) == steady + 3


def test_steps_that_never_agree_are_recorded_in_the_end() -> None:
    wild = [100.0 * 3 ** (i % 3) for i in range(40)]
    assert actions(Schedule(wait=0), wild).index(Action.START) == PATIENCE_STEPS


def test_repeat() -> None:
    found = actions(Schedule(wait=1, warmup=1, active=1, repeat=3), [100.0] * 60)
    assert found.count(Action.START) == found.count(Action.STOP) == 3
    assert actions(Schedule(repeat=0), [100.0] * 60).count(Action.START) == 0


@pytest.mark.parametrize("schedule", [Schedule(wait=0), Schedule(repeat=0)], ids=["scheduled", "asked for"])
def test_a_window_that_may_not_begin_begins_once_it_may(schedule: Schedule) -> None:
    windows = Windows(schedule)
    windows.may_begin = lambda: False
    windows.request()
    assert {windows.step_ended(100 * MS, at * 100 * MS) for at in range(20)} == {Action.NOTHING}
    windows.may_begin = lambda: True
    assert windows.step_ended(100 * MS, 2_000 * MS) is Action.START


def test_slow_step_begins_a_window() -> None:
    found = actions(Schedule(repeat=0, on_slow=1.5), [100.0] * 10 + [140.0, 100.0, 160.0, 100.0])
    assert [i for i, action in enumerate(found) if action is Action.START] == [12]


def test_request_begins_a_window_at_once() -> None:
    windows = Windows(Schedule(repeat=0))
    windows.step_ended(MS, MS)
    windows.request()
    assert windows.step_ended(MS, 2 * MS) is Action.START
    assert windows.recording


def test_long_window_is_cut() -> None:
    found = actions(Schedule(wait=0, warmup=1, active=50, longest_s=1.0), [300.0] * 20)
    assert found.index(Action.STOP) - found.index(Action.START) == 4


def test_abandoned_window_does_not_go_on() -> None:
    windows = Windows(Schedule(wait=0, repeat=1))
    for step in range(8):
        windows.step_ended(100 * MS, step * 100 * MS)
    assert windows.recording
    windows.abandon()
    assert windows.step_ended(100 * MS, 900 * MS) is Action.NOTHING


def test_first_step_is_never_counted() -> None:
    steady = SteadyState()
    for duration in (100, 100, 100, 100):
        steady.add(duration * MS)
    assert not steady.steady
    steady.add(100 * MS)
    assert steady.steady


def recorded(durations_ms: list[float], *, alone: bool = True, active: int | None = None) -> int:
    """How many steps a window of the default schedule records."""
    windows = Windows(Schedule(wait=0, active=active))
    windows.alone = alone
    now, found = 0, []
    for duration in durations_ms:
        now += int(duration * MS)
        found.append(windows.step_ended(int(duration * MS), now))
    return found.index(Action.STOP) - found.index(Action.START) - 1


def test_of_short_steps_more_are_recorded() -> None:
    assert recorded([10.0] * 60) == 8
    assert recorded([100.0] * 60) == 4  # half a second with the unrecorded one
    assert recorded([1000.0] * 60) == 3


def test_of_steps_that_differ_more_are_recorded() -> None:
    uneven = [150.0, 250.0] * 30
    assert recorded([200.0] * 60) == 3
    assert recorded(uneven) == 8
    assert recorded([300.0, 500.0] * 30) == 4  # two seconds with the unrecorded one
    assert recorded([200.0, 204.0] * 30) == 3


def test_ranks_record_equally_many_and_what_is_asked_for() -> None:
    assert recorded([10.0] * 60, alone=False) == 3
    assert recorded([10.0] * 60, active=2) == 2
    assert recorded([10.0] * 60, alone=False, active=20) == 20


def test_of_steps_that_the_profiler_makes_far_longer_no_more_than_needed_are_recorded() -> None:
    assert recorded([50.0] * 5 + [120.0] * 60) == 3
    assert recorded([50.0] * 5 + [60.0] * 60) == 8


def recorded_of(durations_ms: list[float]) -> list[float]:
    """The steps of the first window, but for those that run under the profiler unrecorded."""
    found = actions(Schedule(wait=0), durations_ms)
    first, last = found.index(Action.START) + 2, found.index(Action.STOP)
    return durations_ms[first : last + 1]


@pytest.mark.parametrize("steps", [4, 8, 12])
@pytest.mark.parametrize("begin", range(12))
def test_of_steps_that_come_in_rounds_whole_rounds_are_recorded(steps: int, begin: int) -> None:
    """A rollout comes before several steps that learn from it: what analyses take is as much of each as the job has."""
    rounds = [33.0 if (number + begin) % steps == 0 else 1.3 for number in range(80)]
    taken = recorded_of(rounds)[2:-1]
    if 33.0 in recorded_of(rounds):
        assert len(taken) % steps == 0
        assert taken.count(33.0) == len(taken) // steps


def test_one_long_step_is_no_round() -> None:
    alone = [1.3] * 8 + [40.0] + [1.3] * 60
    assert len(recorded_of(alone)) <= 35
    assert recorded_of([1.3] * 80) == [1.3] * 8


def test_long_rounds_are_not_waited_for() -> None:
    """A round of ten seconds would make a trace that nobody waits for."""
    assert len(recorded_of([900.0 if number % 12 == 8 else 100.0 for number in range(80)])) < 12
