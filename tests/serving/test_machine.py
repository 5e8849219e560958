"""The machine over the recorded time: exact on small cases, and the inverse of itself on all."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from tests.serving.server import MS

from whystall.serving.machine import STEADY, UNIT, Machine


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """A recording of some steps, the clients of which stand still now and then."""
    begin = draw(st.sampled_from((0, 12_345, -7 * MS, 1_795_868_899 * 10**9)))
    lengths = draw(st.lists(st.integers(1, 40 * MS), min_size=1, max_size=12))
    work = draw(st.lists(st.floats(0.0, 40.0 * MS), min_size=len(lengths), max_size=len(lengths)))
    boundaries = [begin]
    for one in lengths:
        boundaries.append(boundaries[-1] + one)
    late = draw(st.lists(st.integers(0, 100 * MS), min_size=len(lengths), max_size=len(lengths)))
    seen = [end + more for end, more in zip(boundaries[1:], late, strict=True)]
    for place in range(len(seen) - 1, 0, -1):
        seen[place - 1] = min(seen[place - 1], seen[place])
    return Machine.recorded(
        boundaries, work, tuple(zip(boundaries, boundaries[1:], seen, strict=False)) if draw(st.booleans()) else ()
    )


def test_a_slow_period_is_played_again() -> None:
    """For 100 ms the work of 50 ms is done, then all of it."""
    machine = Machine.recorded([0, 100 * MS, 200 * MS], [50.0 * MS, 100.0 * MS])

    def end(start: int, work: int) -> int:
        return machine.time_at(machine.work_at(start) + work * UNIT)

    assert end(0, 10 * MS) == 20 * MS
    assert end(90 * MS, 15 * MS) == 110 * MS
    assert end(110 * MS, 15 * MS) == 125 * MS
    assert end(190 * MS, 15 * MS) == 210 * MS  # and round again


def test_all_tokens_of_a_standstill_come_at_its_end() -> None:
    """The client had the second step's token 80 ms late, and those before and after at once."""
    deliveries = ((0, 10 * MS, 11 * MS), (10 * MS, 20 * MS, 100 * MS), (100 * MS, 110 * MS, 111 * MS))
    machine = Machine.recorded([0, 110 * MS], [110.0 * MS], deliveries)

    assert machine.delivered(10 * MS) == 11 * MS
    assert machine.delivered(20 * MS) == 100 * MS
    assert machine.delivered(60 * MS) == 100 * MS
    assert machine.delivered(98 * MS) == 100 * MS
    assert machine.delivered(104 * MS) == 105 * MS
    assert machine.delivered(13 * MS) == 14 * MS  # before the second step was half done it got tokens
    assert machine.delivered(130 * MS) == 210 * MS  # and round again


@given(machines(), st.integers(-200 * MS, 400 * MS))
def test_work_and_time_are_inverse(machine: Machine, after: int) -> None:
    time = machine.times_ns[0] + after

    work = machine.work_at(time)

    assert machine.time_at(work) <= time <= machine.time_at(work + 1)
    assert machine.work_at(machine.time_at(work)) <= work <= machine.work_at(machine.time_at(work) + 1)


def pieces(machine: Machine) -> list[tuple[int, int]]:
    """Time and work between two boundaries."""
    return [(b - a, d - c) for (a, b), (c, d) in zip(pairwise(machine.times_ns), pairwise(machine.work), strict=True)]


@given(machines(), st.integers(0, 3))
def test_a_drawn_machine_is_made_of_the_recording(machine: Machine, seed: int) -> None:
    """Its pace is always one of the recording; tokens come once they are ready, and no later than they ever did."""
    drawn = machine.drawn(seed)

    assert drawn == machine.drawn(seed)
    assert all(a < b for a, b in zip(drawn.times_ns, drawn.times_ns[1:], strict=False))
    assert all(a < b for a, b in zip(drawn.work, drawn.work[1:], strict=False))
    assert list(drawn.ready_ns) == sorted(drawn.ready_ns)
    assert list(drawn.seen_ns) == sorted(drawn.seen_ns)
    paces = [done / took for took, done in pieces(machine)]
    for took, done in pieces(drawn):  # each in whole units, and one at least
        assert min(paces) * took - 2 <= done <= max(paces) * took + 2
    latest = max((seen - ready for ready, seen in zip(machine.ready_ns, machine.seen_ns, strict=True)), default=0)
    for time in range(drawn.times_ns[0], drawn.times_ns[-1], max(drawn.length_ns // 50, 1)):
        assert time <= drawn.delivered(time) <= time + latest


def test_a_steady_machine_does_nothing_to_time() -> None:
    for time in (0, 1, 12_345, 10**18):
        assert STEADY.work_at(time) == time * UNIT
        assert STEADY.time_at(time * UNIT) == time
        assert STEADY.delivered(time) == time
