"""Who launched what, what ran inside what, what is whose backward: in built traces with known answers."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from whystall.testing import TraceBuilder, trace
from whystall.trace.model import Trace


def names_at(table: pl.DataFrame, rows: pl.Series) -> list[str | None]:
    return [None if row is None else table["name"][row] for row in rows.to_list()]


def launches(built: TraceBuilder) -> list[str | None]:
    loaded = built.load()
    return names_at(loaded.runtime_calls, loaded.device_events["launch"])


def bare(category: str, name: str, *, at: int, lasts: int = 0, **fields: Any) -> dict[str, Any]:
    """An event as the builder writes it, with fields of its own."""
    event: dict[str, Any] = trace().event(category, name, at=at, lasts=lasts).events[0]
    event.pop("args")
    return {**event, **fields}


# --- launches -----------------------------------------------------------------------------------------


def test_a_launch_is_found_by_its_correlation() -> None:
    built = (
        trace()
        .runtime("first", at=0, lasts=1000, correlation=5)
        .runtime("second", at=2000, lasts=1000, correlation=6)
        .kernel("b", at=9000, lasts=10, correlation=6)
        .kernel("a", at=8000, lasts=10, correlation=5)
    )
    assert launches(built) == ["first", "second"]


def test_one_graph_launch_owns_many_kernels() -> None:
    built = trace().runtime("cudaGraphLaunch", at=0, lasts=1000, correlation=5)
    for i in range(50):
        built.kernel(f"k{i}", at=5000 + 100 * i, lasts=50, correlation=5)
    assert launches(built) == ["cudaGraphLaunch"] * 50


def test_of_several_calls_with_one_id_the_last_before_the_event_counts() -> None:
    built = (
        trace()
        .runtime("early", at=0, lasts=100, correlation=5)
        .runtime("late", at=1000, lasts=100, correlation=5)
        .kernel("between", at=500, lasts=10, correlation=5)
        .kernel("after", at=2000, lasts=10, correlation=5)
    )
    assert launches(built) == ["early", "late"]


def test_where_all_calls_come_after_the_event_the_next_one_counts() -> None:
    built = (
        trace()
        .kernel("k", at=0, lasts=10, correlation=5)
        .runtime("next", at=1000, lasts=100, correlation=5)
        .runtime("last", at=2000, lasts=100, correlation=5)
    )
    assert launches(built) == ["next"]


@pytest.mark.parametrize("correlation", [0, -1, -(2**63)])
def test_an_id_of_zero_or_below_names_no_launch(correlation: int) -> None:
    built = (
        trace()
        .runtime("call", at=0, lasts=100, correlation=correlation)
        .kernel("k", at=500, lasts=10, correlation=correlation)
    )
    assert launches(built) == [None]


@pytest.mark.parametrize("correlation", [2**31, 2**32 + 5, 2**63 - 1])
def test_large_ids(correlation: int) -> None:
    built = (
        trace()
        .runtime("small", at=0, lasts=100, correlation=5)
        .runtime("large", at=0, lasts=100, correlation=correlation)
        .kernel("k", at=500, lasts=10, correlation=correlation)
    )
    assert launches(built) == ["large"]


def test_an_id_beyond_64_bits_names_no_launch_and_loses_no_event() -> None:
    built = trace().runtime("call", at=0, lasts=100, correlation=2**64).kernel("k", at=500, lasts=10, correlation=2**64)
    assert launches(built) == [None]


def test_ids_given_as_text_are_numbers() -> None:
    built = trace().runtime("call", at=0, lasts=100, correlation=5).kernel("k", at=500, lasts=10, correlation="5")
    assert launches(built) == ["call"]


def test_a_lost_launch_is_null() -> None:
    assert launches(trace().kernel("k", at=500, lasts=10, correlation=7)) == [None]


def without_arguments(arrows: int = 1, category: str = "ac2g") -> TraceBuilder:
    """A kernel that only an arrow connects with its call."""
    built = trace().runtime("call", at=0, lasts=100)
    for number in range(arrows):
        built.events += [
            bare(category, category, at=0, ph="s", id=number),
            bare(category, category, at=500, ph="f", id=number, bp="e", tid=7, pid=0),
        ]
    built.events.append(bare("kernel", "k", at=500, lasts=10, tid=7, pid=0))
    return built


def test_without_correlations_the_arrow_tells() -> None:
    assert launches(without_arguments()) == ["call"]
    assert launches(without_arguments(category="async_cpu_to_gpu")) == ["call"]


def test_arrows_between_forward_and_backward_are_no_launches() -> None:
    assert launches(without_arguments(category="fwdbwd")) == [None]
    assert launches(without_arguments(category="forward_backward")) == [None]


def test_many_arrows_at_one_place_link_once() -> None:
    assert launches(without_arguments(arrows=500)) == ["call"]


# --- operators and frames -----------------------------------------------------------------------------


def nested() -> Trace:
    return (
        trace()
        .python("train.py(3): main", at=0, lasts=10_000)
        .python("nn.Module: Net_0", at=100, lasts=9_000)
        .operator("aten::linear", at=200, lasts=5_000, **{"External id": 11})
        .operator("aten::addmm", at=300, lasts=4_000, **{"External id": 12})
        .launch("gemm", at=400, runs_at=20_000, lasts=100)
        .launch("bare", at=8_000, runs_at=21_000, lasts=100)
        .launch("outside", at=11_000, runs_at=22_000, lasts=100)
        .operator("other thread", at=200, lasts=5_000, thread=777)
        .load()
    )


def test_operator_and_frame_of_a_device_event_are_those_of_its_launch() -> None:
    loaded = nested()
    events = loaded.device_events
    assert names_at(loaded.operators, events["operator"]) == ["aten::addmm", None, None]
    assert names_at(loaded.python_functions, events["frame"]) == ["nn.Module: Net_0", "nn.Module: Net_0", None]


def test_parents_frames_and_modules() -> None:
    loaded = nested()
    by_name = {row["name"]: row for row in loaded.operators.iter_rows(named=True)}
    assert loaded.operators["name"][by_name["aten::addmm"]["parent"]] == "aten::linear"
    assert by_name["aten::linear"]["parent"] is None
    assert by_name["other thread"]["frame"] is None
    assert loaded.python_functions["name"][by_name["aten::linear"]["frame"]] == "nn.Module: Net_0"
    assert names_at(loaded.python_functions, loaded.python_functions["module"]) == [None, "nn.Module: Net_0"]
    assert by_name["aten::linear"]["self_ns"] == 1_000
    assert by_name["aten::addmm"]["self_ns"] == 3_000  # the launch call inside takes the rest


def test_without_a_launch_the_external_id_names_the_operator() -> None:
    own: dict[str, Any] = {"External id": 42, "correlation": 9}
    as_in_2022: dict[str, Any] = {"External id": 42, "correlation": 42}
    loaded = (
        trace()
        .python("frame", at=0, lasts=1000)
        .operator("aten::mm", at=100, lasts=100, **{"External id": 42})
        .kernel("k", at=500, lasts=10, **own)
        .kernel("old", at=600, lasts=10, **as_in_2022)
        .load()
    )
    assert names_at(loaded.operators, loaded.device_events["operator"]) == ["aten::mm", None]
    assert names_at(loaded.python_functions, loaded.device_events["frame"]) == ["frame", None]


def test_partial_overlaps_are_siblings_and_nothing_is_dropped() -> None:
    loaded = trace().operator("a", at=0, lasts=1000).operator("b", at=500, lasts=1000).load()
    assert loaded.operators["parent"].to_list() == [None, None]
    assert loaded.operators["self_ns"].to_list() == [500, 1000]


# --- forward and backward -----------------------------------------------------------------------------


def forwards(built: TraceBuilder) -> dict[str, str | None]:
    loaded = built.load()
    found = names_at(loaded.operators, loaded.operators["forward"])
    return dict(zip(loaded.operators["name"].cast(pl.String).to_list(), found, strict=True))


def numbered(built: TraceBuilder, name: str, at: int, number: int, forward_thread: int = 0) -> TraceBuilder:
    arguments: dict[str, Any] = {"Sequence number": number, "Fwd thread id": forward_thread}
    return built.operator(name, at=at, lasts=10, **arguments)


def test_a_backward_belongs_to_the_forward_of_its_number() -> None:
    built = trace()
    numbered(built, "first", 0, 1)
    numbered(built, "second", 100, 2)
    numbered(built, "SecondBackward", 500, 2, 1)
    numbered(built, "FirstBackward", 600, 1, 1)
    assert forwards(built) == {"first": None, "second": None, "SecondBackward": "second", "FirstBackward": "first"}


def test_of_several_forwards_of_a_number_the_last_to_start_counts() -> None:
    built = trace()
    numbered(built, "outer", 0, 1)
    numbered(built, "inner", 2, 1)
    numbered(built, "Backward", 500, 1, 1)
    numbered(built, "next iteration", 900, 1)
    assert forwards(built)["Backward"] == "inner"


def test_without_a_number_or_a_forward_there_is_no_link() -> None:
    built = trace().operator("plain", at=0, lasts=10)
    numbered(built, "negative", 100, -1)
    numbered(built, "Backward", 500, -1, 1)
    numbered(built, "LonelyBackward", 600, 8, 1)
    assert set(forwards(built).values()) == {None}
