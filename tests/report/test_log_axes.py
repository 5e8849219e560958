"""Logarithmic axes: every power as far from the next."""

from __future__ import annotations

import pytest
from tests.probe.comm.test_parts import row

from whystall.report.comm_chart import size_chart
from whystall.report.log_axes import LogAxis


def test_a_decade_takes_as_much_room_as_any_other() -> None:
    axis = LogAxis.across([2, 900])  # 1 to 1000
    places = [axis.place(value) for value in (1, 10, 100, 1000)]
    assert (axis.first, axis.last) == (0, 3)
    assert places == pytest.approx([4, 4 + 92 / 3, 4 + 184 / 3, 96])
    assert [tick.at for tick in axis.ticks(str)] == pytest.approx(places)
    assert (axis.place(0.001), axis.place(10**9)) == (4, 96)


def test_powers_of_two_are_ends_of_their_axis() -> None:
    axis = LogAxis.across([1 << 10, 1 << 20], base=2)
    assert (axis.first, axis.last) == (10, 20)
    assert [tick.label for tick in axis.ticks(str)] == ["10", "12", "14", "16", "18", "20"]


def test_up_grows_upwards() -> None:
    axis = LogAxis.up([1, 100])
    assert (axis.place(1), axis.place(10), axis.place(100)) == pytest.approx((90, 47, 4))


def test_a_collective_s_sizes_stand_from_left_to_right_with_their_scatter() -> None:
    rows = [row("all_reduce", size, 10 * size, scatter=0.1) for size in (1 << 16, 1 << 10, 1 << 13)]
    chart = size_chart("all_reduce", rows)
    assert [dot.x for dot in chart.dots] == pytest.approx([4, 50, 96])
    lower, middle, upper = (dot.y for dot in chart.dots)
    assert middle == pytest.approx((lower + upper) / 2)
    assert lower > middle > upper  # the frame's zero is on top
    assert all(dot.low > dot.y > dot.high for dot in chart.dots)
    assert [(line.x1, line.x2) for line in chart.lines] == [(4, 50), (50, 96)]
    assert (chart.across[0].label, chart.across[-1].label) == ("1 KiB", "64 KiB")
