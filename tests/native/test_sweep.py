"""The sweeps equal brute force: instant by instant on small integer timelines, event by event elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from whystall._native import class_states, nearest_marked, nest, outermost, subtree_sums, thread_states

LAST = 24  # instants of a timeline

Interval = tuple[int, int]
INTERVALS = st.tuples(st.integers(0, LAST), st.integers(0, LAST)).map(lambda pair: (min(pair), max(pair)))


class Events:
    """Random host events, and what the definitions in ``sweep.hpp`` say of them."""

    def __init__(self, rows: list[tuple[int, Interval, int]]) -> None:
        self.thread = [thread for thread, _, _ in rows]
        self.start = [interval[0] for _, interval, _ in rows]
        self.end = [interval[1] for _, interval, _ in rows]
        self.rank = [rank for _, _, rank in rows]

    def __len__(self) -> int:
        return len(self.thread)

    def place(self, i: int) -> tuple[int, int, int, int]:
        """Outer events come first: earlier, then longer, then of lower rank, then of lower index."""
        return self.start[i], -self.end[i], self.rank[i], i

    def contains(self, i: int, j: int) -> bool:
        """Whether ``i`` contains ``j``; an interval without its end holds nothing at that end."""
        return (
            i != j
            and self.thread[i] == self.thread[j]
            and self.start[i] <= self.start[j] < self.end[i]
            and self.end[j] <= self.end[i]
            and self.place(i) < self.place(j)
        )

    def parent(self, j: int) -> int:
        return max((i for i in range(len(self)) if self.contains(i, j)), key=self.place, default=-1)

    def running(self, thread: int, instant: int) -> int:
        """The latest-started event of a thread that runs over ``[instant, instant + 1)``, or -1."""
        found = [i for i in range(len(self)) if self.thread[i] == thread and self.start[i] <= instant < self.end[i]]
        return max(found, key=self.place, default=-1)

    def nest(self, shift: int = 0) -> tuple[list[int], list[int], list[int]]:
        order, parent, self_ns = nest(
            np.array(self.thread, np.int32),
            np.array(self.start, np.int64) + shift,
            np.array(self.end, np.int64) + shift,
            np.array(self.rank, np.uint8),
        )
        return order.tolist(), parent.tolist(), self_ns.tolist()


EVENTS = st.lists(st.tuples(st.integers(0, 2), INTERVALS, st.integers(0, 3)), max_size=14).map(Events)


@given(EVENTS, st.sampled_from([0, -10, 2**62, -(2**62)]))
@settings(max_examples=400)
def test_parents_and_self_times(events: Events, shift: int) -> None:
    order, parent, self_ns = events.nest(shift)
    assert order == sorted(range(len(events)), key=lambda i: (events.thread[i], events.place(i)))
    assert parent == [events.parent(i) for i in range(len(events))]
    spent = [0] * len(events)
    for thread in set(events.thread):
        for instant in range(LAST):
            if (running := events.running(thread, instant)) >= 0:
                spent[running] += 1
    assert self_ns == spent


@given(EVENTS)
def test_self_times_add_up_to_the_union(events: Events) -> None:
    _, _, self_ns = events.nest()
    union = {
        (events.thread[i], instant) for i in range(len(events)) for instant in range(events.start[i], events.end[i])
    }
    assert sum(self_ns) == len(union)


def ancestors(parent: list[int], event: int) -> list[int]:
    found = []
    while parent[event] >= 0:
        event = parent[event]
        found.append(event)
    return found


@given(EVENTS, st.data())
def test_ancestors(events: Events, data: st.DataObject) -> None:
    order, parent, _ = events.nest()
    count = len(events)
    tree = (np.array(order, np.uint32), np.array(parent, np.int32))

    marked = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    nearest = [next((above for above in ancestors(parent, event) if marked[above]), -1) for event in range(count)]
    assert nearest_marked(*tree, np.array(marked, np.uint8)).tolist() == nearest

    values = data.draw(st.lists(st.integers(-(2**40), 2**40), min_size=count, max_size=count))
    sums = [
        sum(values[other] for other in range(count) if other == event or event in ancestors(parent, other))
        for event in range(count)
    ]
    assert subtree_sums(*tree, np.array(values, np.int64)).tolist() == sums

    labels = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    outer = [all(labels[above] != labels[event] for above in ancestors(parent, event)) for event in range(count)]
    assert outermost(*tree, np.array(labels, np.int32)).astype(bool).tolist() == outer


def by_instant(times: NDArray[np.int64], states: NDArray[np.uint8]) -> list[int]:
    assert len(times) == len(states) + 1 or (len(times) == len(states) == 0)
    assert np.all(np.diff(times) > 0)
    assert np.all(states[1:] != states[:-1]), "neighbours differ"
    found = [0] * LAST
    for begin, end, state in zip(times[:-1].tolist(), times[1:].tolist(), states.tolist(), strict=True):
        found[begin:end] = [state] * (end - begin)
    return found


@given(EVENTS, st.data())
@settings(max_examples=300)
def test_thread_states(events: Events, data: st.DataObject) -> None:
    order, parent, _ = events.nest()
    count = len(events)
    states = data.draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    inherited = data.draw(st.lists(st.booleans(), min_size=5, max_size=5))
    for thread in set(events.thread):
        mine = [event for event in order if events.thread[event] == thread]
        found = by_instant(
            *thread_states(
                np.array(events.start, np.int64),
                np.array(events.end, np.int64),
                np.array(mine, np.uint32),
                np.array(states, np.uint8),
                np.array(inherited, np.bool_),
            )
        )
        for instant in range(LAST):
            running = events.running(thread, instant)
            line = [running, *ancestors(parent, running)] if running >= 0 else []
            state = states[running] if running >= 0 else 0
            outer = [states[event] for event in line[1:] if inherited[states[event]]]
            assert found[instant] == (outer[-1] if outer else state), instant


@given(st.lists(st.tuples(INTERVALS, st.integers(0, 7)), max_size=20))
@settings(max_examples=300)
def test_class_states(rows: list[tuple[Interval, int]]) -> None:
    times, states = class_states(
        np.array([interval[0] for interval, _ in rows], np.int64),
        np.array([interval[1] for interval, _ in rows], np.int64),
        np.array([klass for _, klass in rows], np.uint8),
    )
    masks = [0] * LAST
    for (begin, end), klass in rows:
        for instant in range(begin, end):
            masks[instant] |= 1 << klass
    assert by_instant(times, states) == masks
    if rows:
        assert times[0] == min(interval[0] for interval, _ in rows)
        assert times[-1] == max((end for (begin, end), _ in rows if begin < end), default=times[0])


def test_the_widest_times() -> None:
    lowest, highest = np.array([-(2**62)], np.int64), np.array([2**62 - 1], np.int64)
    _, _, self_ns = nest(np.zeros(1, np.int32), lowest, highest, np.zeros(1, np.uint8))
    assert self_ns.tolist() == [2**63 - 1]
    largest = np.array([2**63 - 1], np.int64)
    _, _, self_ns = nest(np.zeros(1, np.int32), np.zeros(1, np.int64), largest, np.zeros(1, np.uint8))
    assert self_ns.tolist() == [2**63 - 1]


def test_deep_and_long_inputs_need_no_stack() -> None:
    count = 300_000
    start = np.arange(count, dtype=np.int64)
    for end in (2 * count - start, start + count, np.full(count, count, np.int64)):
        order, parent, self_ns = nest(np.zeros(count, np.int32), start, end, np.zeros(count, np.uint8))
        assert int(self_ns.sum()) == int(end.max())
        assert outermost(order, parent, np.zeros(count, np.int32))[0] == 1
        assert subtree_sums(order, parent, np.ones(count, np.int64)).max() <= count


def i64(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def i32(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def u32(*values: int) -> NDArray[np.uint32]:
    return np.array(values, np.uint32)


def u8(*values: int) -> NDArray[np.uint8]:
    return np.array(values, np.uint8)


WRONG: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "nest: lengths": (nest, (i32(0), i64(0, 1), i64(1, 2), u8(0, 0))),
    "nest: ends": (nest, (i32(0, 0), i64(0, 1), i64(1), u8(0, 0))),
    "nest: ranks": (nest, (i32(0), i64(0), i64(1), u8())),
    "nest: backwards": (nest, (i32(0), i64(2), i64(1), u8(0))),
    "nest: negative thread": (nest, (i32(-1), i64(0), i64(1), u8(0))),
    "nest: huge thread": (nest, (i32(2**31 - 1), i64(0), i64(1), u8(0))),
    "nest: too far apart": (nest, (i32(0), i64(-(2**63)), i64(2**63 - 1), u8(0))),
    "nest: two too far apart": (nest, (i32(0, 1), i64(-(2**63), 5), i64(-(2**63), 6), u8(0, 0))),
    "nearest: order": (nearest_marked, (u32(1), i32(-1), u8(0))),
    "nearest: parent": (nearest_marked, (u32(0), i32(1), u8(0))),
    "nearest: lengths": (nearest_marked, (u32(0), i32(-1), u8())),
    "nearest: tree": (nearest_marked, (u32(0), i32(), u8(0))),
    "sums: order": (subtree_sums, (u32(2**32 - 1), i32(-1), i64(0))),
    "sums: parent": (subtree_sums, (u32(0), i32(2**31 - 1), i64(0))),
    "sums: lengths": (subtree_sums, (u32(0), i32(-1), i64(0, 0))),
    "outermost: label": (outermost, (u32(0), i32(-1), i32(-1))),
    "outermost: huge label": (outermost, (u32(0), i32(-1), i32(2**31 - 1))),
    "outermost: lengths": (outermost, (u32(0), i32(-1), i32())),
    "threads: order": (thread_states, (i64(0), i64(1), u32(1), u8(0), np.array([False]))),
    "threads: state": (thread_states, (i64(0), i64(1), u32(0), u8(1), np.array([False]))),
    "threads: no states": (thread_states, (i64(), i64(), u32(), u8(), np.array([], np.bool_))),
    "threads: lengths": (thread_states, (i64(0), i64(1), u32(0), u8(), np.array([False]))),
    "threads: backwards": (thread_states, (i64(1), i64(0), u32(0), u8(0), np.array([False]))),
    "classes: class": (class_states, (i64(0), i64(1), u8(8))),
    "classes: lengths": (class_states, (i64(0), i64(1), u8())),
    "classes: backwards": (class_states, (i64(1), i64(0), u8(0))),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_values_are_refused(name: str) -> None:
    function, arguments = WRONG[name]
    with pytest.raises(ValueError, match=r"\w"):
        function(*arguments)


@pytest.mark.parametrize("wrong", [[1], None, np.zeros((2, 2), np.int64), np.zeros(1, object)])
def test_wrong_types_are_refused(wrong: Any) -> None:
    with pytest.raises(TypeError):
        class_states(wrong, i64(1), u8(0))
    with pytest.raises(TypeError):
        nest(i32(0), wrong, i64(1), u8(0))


@given(
    st.lists(st.integers(0, 5), max_size=6),
    st.lists(st.integers(-7, 5), max_size=6),
    st.lists(st.integers(0, 5), max_size=6),
)
def test_any_forest_is_refused_or_survived(order: list[int], parent: list[int], label: list[int]) -> None:
    sweeps: list[tuple[Callable[..., Any], Any]] = [
        (nearest_marked, np.array(label, np.uint8)),
        (subtree_sums, np.array(label, np.int64)),
        (outermost, np.array(label, np.int32)),
    ]
    for function, values in sweeps:
        try:
            assert len(function(np.array(order, np.uint32), np.array(parent, np.int32), values)) == len(order)
        except ValueError:
            assert len({len(order), len(parent), len(label)}) > 1 or max(order + parent) >= len(order)


def test_no_events() -> None:
    for found in nest(i32(), i64(), i64(), u8()):
        assert len(found) == 0
    times, states = class_states(i64(), i64(), u8())
    assert (len(times), len(states)) == (0, 0)
    times, states = thread_states(i64(), i64(), u32(), u8(), np.array([False]))
    assert len(states) == 0
