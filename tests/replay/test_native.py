"""The native replay against the obvious one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystall._native import replay, thread_spans, thread_states

Edge = tuple[int, int, int]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[int], list[int], list[Edge]]:
    """Durations, delays, and edges that lead to later nodes."""
    count = draw(st.integers(1, 12))
    durations = draw(st.lists(st.integers(0, 50), min_size=count, max_size=count))
    delays = draw(st.lists(st.integers(0, 20), min_size=count, max_size=count))
    pairs = [(a, b) for b in range(count) for a in range(b)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=20)) if pairs else []
    return durations, delays, [(a, b, draw(st.integers(-30, 10))) for a, b in chosen]


def columns(count: int, edges: list[Edge]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ordered = sorted(edges, key=lambda edge: edge[1])
    counts = np.bincount([edge[1] for edge in ordered], minlength=count) if ordered else np.zeros(count, int)
    first = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint64)
    source = np.array([edge[0] for edge in ordered], np.uint32)
    return first, source, np.array([edge[2] for edge in ordered], np.int64)


def obvious(durations: list[int], delays: list[int], edges: list[Edge]) -> list[tuple[int, int]]:
    """Each node waits for the ends of its sources and their lags (yet not before they start), then its own delay."""
    done: list[tuple[int, int]] = []
    for node, (duration, delay) in enumerate(zip(durations, delays, strict=True)):
        waits = [max(done[a][1] + lag, done[a][0]) for a, b, lag in edges if b == node]
        start = (max(waits) if waits else 0) + delay
        done.append((start, start + duration))
    return done


@given(graphs())
def test_every_node_starts_as_the_obvious_way_says(graph: tuple[list[int], list[int], list[Edge]]) -> None:
    durations, delays, edges = graph
    start, end, decided = replay(
        np.array(durations, np.int64), np.array(delays, np.int64), *columns(len(durations), edges)
    )
    assert list(zip(start.tolist(), end.tolist(), strict=True)) == obvious(durations, delays, edges)
    assert all((edge >= 0) == any(b == node for _, b, _ in edges) for node, edge in enumerate(decided.tolist()))


@pytest.mark.parametrize(
    ("first", "source"),
    [([0, 0, 1], [1]), ([0, 1, 1], [0]), ([0, 0, 2], [0]), ([0, 1, 0], [0]), ([1, 1, 1], [0])],
)
def test_edges_that_cannot_be_are_refused(first: list[int], source: list[int]) -> None:
    times = np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="edge"):
        replay(times, times, np.array(first, np.uint64), np.array(source, np.uint32), np.zeros(len(source), np.int64))


def test_absurd_times_do_not_wrap() -> None:
    huge = np.array([2**62, 2**62, 2**62], np.int64)
    _, end, _ = replay(
        huge,
        np.zeros(3, np.int64),
        np.array([0, 0, 1, 2], np.uint64),
        np.array([0, 1], np.uint32),
        np.zeros(2, np.int64),
    )
    assert (np.diff(end) >= 0).all()


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), max_size=10))
def test_spans_have_the_states_of_states_and_the_event_that_started_last(events: list[tuple[int, int]]) -> None:
    """Nested events (those that cross are left out), checked instant by instant."""
    kept: list[tuple[int, int]] = []
    for begin, length in sorted(events, key=lambda event: (event[0], -event[1])):
        end = begin + length
        if all(end <= b or begin >= e or (begin >= b and end <= e) for b, e in kept):
            kept.append((begin, end))
    start = np.array([event[0] for event in kept], np.int64)
    stop = np.array([event[1] for event in kept], np.int64)
    order = np.arange(len(kept), dtype=np.uint32)
    state = (np.arange(len(kept)) % 3 + 1).astype(np.uint8)
    inherited = np.zeros(4, np.bool_)
    times, states, innermost = thread_spans(start, stop, order, state, inherited)
    for i, (a, b) in enumerate(zip(times[:-1].tolist(), times[1:].tolist(), strict=True)):
        for instant in range(a, b):
            running = [n for n, (s, e) in enumerate(kept) if s <= instant < e]
            assert innermost[i] == (running[-1] if running else -1)
            assert states[i] == (state[running[-1]] if running else 0)
    merged_times, merged_states = thread_states(start, stop, order, state, inherited)
    changes = np.flatnonzero(np.append(True, states[1:] != states[:-1])) if len(states) else np.zeros(0, int)
    assert merged_states.tolist() == states[changes].tolist()
    assert merged_times[:-1].tolist() == times[:-1][changes].tolist()
