"""Counters of devices, against loops over every nanosecond of small recordings."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import whystall
from whystall.analysis.counters import DeviceCounter, holds, weighted_mean, weighted_percentile
from whystall.testing import TraceBuilder, trace
from whystall.trace.model import Trace

BUSY = ((100, 30), (150, 50), (180, 40))  # begin and length of kernels, the last two of which overlap


def job(*samples: tuple[int, float], device: int = 0) -> TraceBuilder:
    built = trace()
    for at, lasts in BUSY:
        built.kernel("gemm", at=at, lasts=lasts, device=device)
    for at, value in samples:
        built.counter("SM Active (%)", value, at=at, device=device)
    return built


def counters(built: TraceBuilder) -> list[DeviceCounter]:
    return whystall.analyze(built.load()).device_counters


def held_at(instant: int, samples: list[tuple[int, float]], usual: int) -> float | None:
    """The value of the last sample that is not later, if it still holds."""
    before = [(at, value) for at, value in samples if at <= instant]
    if not before or instant >= samples[-1][0] + usual:
        return None
    return before[-1][1]


def by_nanosecond(samples: list[tuple[int, float]], busy: tuple[tuple[int, int], ...]) -> dict[str, Any]:
    """What a counter says, by looking at each nanosecond of the window."""
    gaps = sorted(later[0] - earlier[0] for earlier, later in itertools.pairwise(samples))
    middle = len(gaps) // 2
    usual = 0 if not gaps else gaps[middle] if len(gaps) % 2 else (gaps[middle - 1] + gaps[middle]) // 2
    window = range(min(at for at, _ in busy), max(at + lasts for at, lasts in busy))
    found = [(instant, held_at(instant, samples, usual)) for instant in window]
    known = [(instant, value) for instant, value in found if value is not None]

    def works(instant: int) -> bool:
        return any(at <= instant < at + lasts for at, lasts in busy)

    def mean(values: list[float]) -> float | None:
        return sum(values) / len(values) if values else None

    def least(percent: int) -> float | None:
        ordered = sorted(value for _, value in known)
        return next(
            (value for value in ordered if 100 * sum(one <= value for one in ordered) >= percent * len(ordered)), None
        )

    return {
        "covered_ns": len(known),
        "mean": mean([value for _, value in known]),
        "p5": least(5),
        "p95": least(95),
        "busy_mean": mean([value for instant, value in known if works(instant)]),
        "idle_mean": mean([value for instant, value in known if not works(instant)]),
    }


def same(row: DeviceCounter, wanted: dict[str, Any]) -> None:
    for key, value in wanted.items():
        assert getattr(row, key) == (pytest.approx(value, abs=1e-9) if isinstance(value, float) else value), key


def test_a_value_holds_until_the_next_one_within_the_window() -> None:
    """Busy from 100 to 130 and from 150 to 220: 80 while it works, but for 10 ns; 4 in the gap."""
    samples = [(0, 1.0), (90, 80.0), (130, 4.0), (160, 80.0), (215, 80.0)]
    (row,) = counters(job(*samples))
    assert (row.rank, row.device, row.name, row.unit, row.samples, row.covered_ns) == (
        0,
        0,
        "SM Active (%)",
        "%",
        4,
        120,
    )
    assert row.busy_mean == pytest.approx((30 * 80 + 10 * 4 + 60 * 80) / 100)
    assert row.idle_mean == 4.0
    assert (row.p5, row.p95) == (4.0, 80.0)
    same(row, by_nanosecond(samples, BUSY))


times = st.lists(st.integers(0, 300), min_size=1, max_size=12, unique=True).map(sorted)


@given(times, st.data())
def test_every_figure_is_that_of_a_loop_over_every_nanosecond(at: list[int], data: st.DataObject) -> None:
    values = data.draw(st.lists(st.integers(-50, 100).map(float), min_size=len(at), max_size=len(at)))
    samples = list(zip(at, values, strict=True))
    wanted = by_nanosecond(samples, BUSY)
    found = counters(job(*samples))
    if wanted["covered_ns"] == 0:
        assert found == []
        return
    (row,) = found
    same(row, wanted)


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 5)), max_size=30), st.integers(0, 100))
@example([(1, 0), (2, 3)], 5)
def test_weighted_figures_are_those_of_values_that_are_repeated(pairs: list[tuple[int, int]], percent: int) -> None:
    values = np.array([value for value, _ in pairs], np.float64)
    held = np.array([weight for _, weight in pairs], np.int64)
    repeated = sorted(value for value, weight in pairs for _ in range(weight))
    if not repeated:
        assert weighted_mean(values, held) is weighted_percentile(values, held, percent) is None
        return
    assert weighted_mean(values, held) == pytest.approx(sum(repeated) / len(repeated))
    place = max(math.ceil(len(repeated) * percent / 100), 1) - 1
    assert weighted_percentile(values, held, percent) == repeated[place]


@given(times, st.integers(0, 200), st.integers(0, 200))
def test_values_hold_one_after_the_other(at: list[int], first: int, lasts: int) -> None:
    begin, end = holds(np.array(at), (first, first + lasts))
    assert (begin[1:] == end[:-1]).all()
    assert ((first <= begin) & (begin <= end) & (end <= first + lasts)).all()


def test_a_mean_that_no_number_can_hold_is_unknown() -> None:
    assert weighted_mean(np.array([1.7e308, 1.7e308]), np.array([1, 1])) == 1.7e308
    assert weighted_mean(np.array([math.inf]), np.array([1])) is None


def test_counters_of_a_device_that_ran_nothing_are_of_the_whole_recording() -> None:
    """Nobody saw it idle: another process may have used it."""
    built = job()
    built.counter("Power (W)", 100, at=110, device=3).counter("Power (W)", 200, at=160, device=3)
    (row,) = counters(built)
    assert (row.device, row.covered_ns, row.mean) == (3, 100, 150.0)
    assert row.busy_mean is row.idle_mean is None


def test_each_device_has_its_own_window() -> None:
    built = job((100, 10.0), (110, 10.0))
    built.kernel("gemm", at=500, lasts=10, device=1)
    built.counter("SM Active (%)", 70, at=490, device=1).counter("SM Active (%)", 90, at=505, device=1)
    first, second = counters(built)
    assert (first.device, first.covered_ns, first.mean) == (0, 20, 10.0)
    assert (second.device, second.covered_ns, second.mean) == (1, 10, 80.0)


def test_without_a_value_in_the_window_nothing_is_said() -> None:
    assert counters(job((0, 1.0), (10, 2.0))) == []
    assert counters(job((150, 1.0))) == [], "how long a single value holds nobody knows"
    assert counters(trace().operator("aten::mm", at=0, lasts=10).counter("Power (W)", 1, at=0)) == []


def test_a_trace_has_no_counters_where_none_were_recorded() -> None:
    loaded: Trace = job().load()
    assert loaded.counters.is_empty()
    assert loaded.counters.schema["value"] == pl.Float64
