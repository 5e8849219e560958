"""The roofline's drawing: logarithmic, within its frame, in words too."""

from __future__ import annotations

import math
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystall.analysis.work_results import DeviceEfficiency, LeftOut, Roofline, RooflineCeiling, RooflinePoint
from whystall.report.html import render_html
from whystall.report.roofline_chart import RooflineView, roofline_table, roofline_view
from whystall.report.schema import Report
from whystall.report.tables import Limits

LIMITS = Limits(rows=100, name=80)
amounts = st.floats(min_value=1e-12, max_value=1e20)


def point(intensity: float, rate: float, device_ns: int = 1000, name: str = "aten::mm") -> RooflinePoint:
    return RooflinePoint(
        operator=name, dtype="bfloat16", precision="bf16", calls=1, device_ns=device_ns, operations=1, bytes=1,
        intensity=intensity, operations_per_s=rate, bytes_per_s=1.0, attainable_per_s=None, share=None,
        headroom_ns=None, bound=None,
    )  # fmt: skip


def rated(
    points: list[RooflinePoint], *, ceiling: float | None = 312e12, memory: float | None = 2e12
) -> DeviceEfficiency:
    ceilings = []
    if ceiling is not None:
        ridge = None if memory is None else ceiling / memory
        ceilings = [RooflineCeiling(precision="bf16", flops_per_s=ceiling, ridge=ridge)]
    return DeviceEfficiency(
        rank=0, device=0, by_dtype=[], mfu=None, hfu=None, tensor_core_share=None, covered_share=1.0, peak=None,
        peak_source=None, unknown_because="no peak is known for 'X'",
        roofline=Roofline(
            memory_bytes_per_s=memory, ceilings=ceilings, points=points,
            left_out=[LeftOut(reason="operators that only move data", device_ns=1_500)],
        ),
    )  # fmt: skip


def drawn(points: list[RooflinePoint], *, ceiling: float | None = 312e12, memory: float | None = 2e12) -> RooflineView:
    view = roofline_view(rated(points, ceiling=ceiling, memory=memory))
    assert view is not None
    return view


def test_a_factor_of_ten_is_as_far_everywhere() -> None:
    view = drawn([point(1, 1e12, 4), point(10, 1e13, 3), point(100, 1e14, 2)])
    xs, ys = [dot.x for dot in view.dots], [dot.y for dot in view.dots]
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1])
    assert ys[0] - ys[1] == pytest.approx(ys[1] - ys[2])
    assert xs[0] < xs[1]
    assert ys[0] > ys[1]  # faster is higher, and heights count from the top


def test_the_roof_bends_where_memory_meets_the_peak() -> None:
    view = drawn([point(1, 1e12), point(1000, 1e14)])
    memory, ceiling = view.lines
    assert [memory.x2, memory.y2] == pytest.approx([ceiling.x1, ceiling.y1])
    assert ceiling.y1 == ceiling.y2
    ticks = {tick.label: tick.at for tick in view.across}
    assert ticks["100"] < ceiling.x1 < ticks["1,000"]  # the ridge, 312e12 / 2e12 = 156 operations a byte
    ahead = (ceiling.x1 - ticks["100"]) / (ticks["1,000"] - ticks["100"])
    assert ahead == pytest.approx(math.log10(1.56))


def test_a_point_that_reaches_the_peak_lies_on_the_ceiling() -> None:
    view = drawn([point(1000, 312e12)])
    assert view.dots[0].y == pytest.approx(view.lines[1].y1)


def test_areas_grow_with_time() -> None:
    view = drawn([point(1, 1e12, 100), point(2, 1e12, 25), point(3, 1e12, 1)])
    large, middle, small = (dot.radius - 4.5 for dot in view.dots)
    assert [middle / large, small / large] == pytest.approx([1 / 2, 1 / 10])


def test_a_point_of_hardly_any_time_stretches_no_axis() -> None:
    alone = drawn([point(1, 1e12, 10_000)])
    points = [point(1, 1e12, 10_000), point(1e-6, 1e3, 5)]
    view = drawn(points)
    assert (view.across, view.up, len(view.dots)) == (alone.across, alone.up, 1)
    assert len(roofline_table(rated(points), LIMITS).rows) == 2
    assert view.left_out[0] == "1 operator of little time, in the table alone: 5 ns"


def test_without_peaks_the_reason_stands_there() -> None:
    view = drawn([point(1, 1e12)], ceiling=None, memory=None)
    assert view.lines == ()
    assert view.unknown == "no peak is known for 'X'"
    assert view.left_out == ("operators that only move data: 1.50 µs",)


@given(st.lists(st.tuples(amounts, amounts, st.integers(0, 10**12)), min_size=1, max_size=60), amounts, amounts)
def test_everything_lies_in_its_frame(rows: list[tuple[float, float, int]], ceiling: float, memory: float) -> None:
    view = drawn([point(*row) for row in rows], ceiling=ceiling, memory=memory)
    places = [(dot.x, dot.y) for dot in view.dots] + [(line.x2, line.y2) for line in view.lines]
    places += [(line.x1, line.y1) for line in view.lines]
    assert all(0 <= x <= 100 and 0 <= y <= 100 for x, y in places)
    assert len(view.across) <= 9
    assert len(view.up) <= 9
    assert len(roofline_table(rated([point(*row) for row in rows]), LIMITS).rows) == min(len(rows), LIMITS.rows)


@pytest.mark.parametrize("value", [math.inf, math.nan, 0.0, -1.0])
def test_numbers_that_have_no_logarithm_are_left_out(value: float) -> None:
    assert len(drawn([point(value, 1e12), point(1, value), point(1, 1e12)]).dots) == 1


def test_the_page_draws_it_with_escaped_names(samples: dict[str, Report]) -> None:
    report = samples["hostile"]
    first = report.efficiency.devices[0]
    assert first.roofline is not None
    points = [
        msgspec.structs.replace(one, operator="</script><script>window.pwned=1</script>")
        for one in first.roofline.points
    ]
    roofline = msgspec.structs.replace(first.roofline, points=points)
    devices = [msgspec.structs.replace(first, roofline=roofline), *report.efficiency.devices[1:]]
    efficiency = msgspec.structs.replace(report.efficiency, devices=devices)
    page = render_html(msgspec.structs.replace(report, efficiency=efficiency))
    figure = page[page.index('<figure class="roofline"') :]
    figure = figure[: figure.index("</figure>")]
    assert "&lt;/script&gt;" in figure
    assert "<script" not in figure
    assert len(re.findall("<circle class", figure)) == len(samples["gpu"].efficiency.devices[0].roofline.points) + 2  # type: ignore[union-attr]


def test_a_report_without_a_roofline_has_no_section(samples: dict[str, Report]) -> None:
    gpu = samples["gpu"]
    bare = [msgspec.structs.replace(row, roofline=None) for row in gpu.efficiency.devices]
    report = msgspec.structs.replace(gpu, efficiency=msgspec.structs.replace(gpu.efficiency, devices=bare))
    assert "sec-roofline" in render_html(gpu)
    assert "sec-roofline" not in render_html(report)
