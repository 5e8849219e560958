from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.diagnosis.cases import run

from whystall.analysis.memory_results import MemoryPeak
from whystall.analysis.results import Module
from whystall.report.charts import curve, icicle, step_columns, step_curves
from whystall.report.schema import Report

paths = st.lists(st.sampled_from("abc01"), min_size=0, max_size=5).map(".".join)
trees = st.dictionaries(paths, st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), max_size=40)


def module(path: str, forward_ns: int, host_ns: int) -> Module:
    return Module(
        rank=0, path=path, class_="M", calls=1, forward_ns=forward_ns, backward_ns=0, forward_self_ns=0,
        backward_self_ns=0, host_ns=host_ns, host_self_ns=0,
    )  # fmt: skip


@given(trees)
def test_modules_lie_within_their_parents_and_beside_each_other(tree: dict[str, tuple[int, int]]) -> None:
    nodes = icicle([module(path, *times) for path, times in tree.items()], most=100)
    for depth in range(6):
        row = sorted((node.x, node.x + node.width) for node in nodes if node.depth == depth)
        assert all(end <= start + 1e-6 for (_, end), (start, _) in itertools.pairwise(row))
        above = [(node.x, node.x + node.width) for node in nodes if node.depth == depth - 1]
        assert depth == 0 or all(any(a - 1e-6 <= x and y <= b + 1e-6 for a, b in above) for x, y in row)
    assert all(node.x + node.width <= 100 + 1e-6 for node in nodes)


def test_layers_are_in_the_order_of_the_model() -> None:
    nodes = icicle([module(f"layers.{i}", 10, 0) for i in (10, 9, 2, 1)], most=10)
    assert [node.label for node in nodes] == ["1", "2", "9", "10"]


def test_paths_may_be_split_by_slashes() -> None:
    nodes = icicle([module(path, 10, 0) for path in ("GPT_0", "GPT_0/Block_0", "GPT_0/Block_0/Linear_0")], most=10)
    assert [(node.label, node.depth) for node in nodes] == [("GPT_0", 0), ("Block_0", 1), ("Linear_0", 2)]


def test_without_device_time_the_tree_is_of_host_time() -> None:
    nodes = icicle([module("a", 0, 30), module("b", 0, 10)], most=10)
    assert [node.width for node in nodes] == [pytest.approx(75), pytest.approx(25)]


def test_a_very_deep_tree_is_no_burden() -> None:
    deep = [module(".".join("a" * depth), 1000, 0) for depth in range(1, 300)]
    assert max(node.depth for node in icicle(deep, most=400)) < 20


def test_a_step_fills_its_column(samples: dict[str, Report]) -> None:
    columns = step_columns(samples["gpu"].devices[0])
    tallest = columns[4]
    assert tallest.outlier
    assert sum(box.height for box in tallest.boxes) == pytest.approx(100)
    assert sum(box.height for box in columns[0].boxes) < 100


def peak_of(points: list[tuple[int, int]]) -> MemoryPeak:
    return MemoryPeak(
        rank=0, device_type="cuda", device=0, events=len(points), peak_allocated_bytes=None, peak_reserved_bytes=None,
        allocated_start_bytes=None, allocated_end_bytes=None, curve=points,
    )  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 2**40)), min_size=2, max_size=3000))
def test_a_thinned_curve_keeps_its_peak_and_stays_in_its_frame(points: list[tuple[int, int]]) -> None:
    drawn = curve(peak_of(points))
    assert drawn
    pairs = [tuple(map(float, pair.split(","))) for pair in drawn.points.split()]
    assert len(pairs) <= 410
    assert all(0 <= x <= 1000 and 0 <= y <= 100 for x, y in pairs)
    assert min(y for _, y in pairs) == 0 or max(held for _, held in points) == 0


def test_a_single_point_is_no_curve() -> None:
    assert curve(peak_of([(0, 1)])) is None


def test_empty_windows_draw_nothing(samples: dict[str, Report]) -> None:
    device = samples["gpu"].devices[0]
    steps = [msgspec.structs.replace(step, window_ns=0) for step in device.steps]
    assert step_columns(msgspec.structs.replace(device, steps=steps)) == ()


def test_step_times_are_drawn_from_zero_to_the_longest() -> None:
    (drawn,) = step_curves([run(durations_ns=[10, 40, 20])])
    assert drawn.points == "0.0,75.00 500.0,0.00 1000.0,50.00"
    assert drawn.peak == "40 ns"
    assert step_curves([run(durations_ns=[10])]) == ()
    assert [one.label for one in step_curves([run(rank=0), run(rank=1)])] == [
        "Step times of rank 0",
        "Step times of rank 1",
    ]
