"""Steps of a recording without marks: what its launches repeat, and what only looks like steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystall.testing import TraceBuilder, trace
from whystall.trace.repeats import _period

_LAYER = [f"kernel_{letter}" for letter in "abcdefghi"]
_HEAD = ["norm", "logits"]
_EACH = 10_000
_MODEL = ["embedding", *_LAYER * 3, *_HEAD]


def _launched(built: TraceBuilder, names: list[str], *, at: int, lasts: int = 5_000) -> int:
    """Launches kernels one after another; returns when the next one may begin."""
    for name in names:
        built.launch(name, at=at, runs_at=at + 2_000, lasts=lasts)
        at += _EACH
    return at


def _loop(names: list[str], times: int, *, first: list[str] | None = None) -> TraceBuilder:
    built = trace()
    at = _launched(built, first or [], at=1_000)
    for _ in range(times):
        at = _launched(built, names, at=at)
    return built


def _found(built: TraceBuilder) -> tuple[list[int], str | None]:
    loaded = built.load()
    if loaded.steps.is_empty():
        return [], loaded.steps_from
    origin = min(time for table in (loaded.runtime_calls, loaded.operators) for time in table["ts_ns"])
    return [start - origin for start in loaded.steps["ts_ns"]], loaded.steps_from


def test_a_model_that_is_called_again_and_again() -> None:
    starts, source = _found(_loop(_MODEL, 4))
    assert starts == [call * len(_MODEL) * _EACH for call in range(4)]
    assert source == "the same launches again and again (the recording has no marks)"


def test_a_first_call_that_launches_something_else_is_no_step() -> None:
    warm = ["embedding", "trial", *_LAYER * 3, "trial", *_HEAD]
    starts, _ = _found(_loop(_MODEL, 4, first=warm))
    assert starts == [(len(warm) + call * len(_MODEL)) * _EACH for call in range(4)]


@pytest.mark.parametrize("recorded", [True, False])
def test_the_hosts_preparation_belongs_to_the_step_if_that_of_the_first_is_recorded(*, recorded: bool) -> None:
    """Each call of the model reads its result; then the host computes, and copies that to the device."""
    built, at, preparation, model = trace(), 1_000, 400_000, len(_MODEL) * _EACH
    for number in range(4):
        if recorded or number:
            built.operator("aten::stft", at=at + 1_000, lasts=preparation - 50_000)
        at += preparation
        built.operator("aten::to", at=at - 20_000, lasts=15_000)
        runs_at = at - 12_000
        built.launch(
            "Memcpy HtoD", at=at - 15_000, runs_at=runs_at, lasts=2_000, category="gpu_memcpy", call="cudaMemcpyAsync"
        )
        at = _launched(built, _MODEL, at=at)
        built.runtime("cudaStreamSynchronize", at=at, lasts=1_000)
        at += 1_000
    loaded = built.load()
    origin = loaded.operators["ts_ns"].min() - (1_000 if recorded else preparation - 20_000)  # type: ignore[operator]
    starts = [start - origin for start in loaded.steps["ts_ns"]]
    whole = preparation + model + 1_000
    first = 1_000 if recorded else preparation  # the operator that began first, and the first launch
    after = 0 if recorded else preparation
    assert starts == [first, *(number * whole + after for number in (1, 2, 3))]


def test_a_wait_and_a_copy_after_the_loop_belong_to_no_step() -> None:
    built = _loop(_MODEL, 4)
    end = 1_000 + 4 * len(_MODEL) * _EACH
    built.runtime("cudaDeviceSynchronize", at=end, lasts=50_000_000)
    built.launch(
        "Memcpy DtoH",
        at=end + 50_000_000,
        runs_at=end + 50_001_000,
        lasts=5_000,
        call="cudaMemcpyAsync",
        category="gpu_memcpy",
    )
    loaded = built.load()
    assert len(loaded.steps) == 4
    assert loaded.steps["duration_ns"].max() == len(_MODEL) * _EACH


@pytest.mark.parametrize(
    "names",
    [
        ["embedding", *_LAYER * 12, *_HEAD],
        ["embedding", *_LAYER * 12],
        _LAYER * 12,
        ["gemm"] * 100,
        ["gemm", "relu"] * 50,
        [*_MODEL * 4, "another", "way", "out"],
        _MODEL * 2,
    ],
)
def test_layers_elements_and_other_work_are_no_steps(names: list[str]) -> None:
    assert _found(_loop(names, 1)) == ([], None)


def test_a_short_pass_is_a_step_where_the_host_copies_or_waits_at_its_begin() -> None:
    built, at = trace(), 1_000
    for _ in range(4):
        built.launch(
            "Memcpy HtoD", at=at, runs_at=at + 2_000, lasts=3_000, call="cudaMemcpyAsync", category="gpu_memcpy"
        )
        at = _launched(built, _LAYER, at=at + _EACH)
    loaded = built.load()
    assert len(loaded.steps) == 4
    # the same launches with copies elsewhere are layers
    built, at = trace(), 1_000
    for _ in range(4):
        at = _launched(built, _LAYER[:4], at=at)
        built.launch(
            "Memcpy HtoD", at=at, runs_at=at + 2_000, lasts=3_000, call="cudaMemcpyAsync", category="gpu_memcpy"
        )
        at = _launched(built, _LAYER[4:], at=at + _EACH)
    assert built.load().steps.is_empty()


@pytest.mark.parametrize(("around_all", "count"), [(False, 4), (True, 0)])
def test_calls_of_a_module_hold_whole_steps(around_all: bool, count: int) -> None:
    """Calls of different modules in turn; within one call of a module they are its layers."""
    built, at = trace(), 1_000
    for call in range(4):
        built.python(f"nn.Module: Block_{call}", at=at - 100, lasts=len(_LAYER) * _EACH, module_id=call)
        at = _launched(built, _LAYER, at=at)
    if around_all:
        built.python("nn.Module: Encoder_0", at=500, lasts=at, module_id=9)
    loaded = built.load()
    assert len(loaded.steps) == count


def test_a_boundary_within_an_operator_is_none() -> None:
    built = _loop(_MODEL, 4)
    built.operator("CompiledFunction", at=500, lasts=4 * len(_MODEL) * _EACH + 1_000)
    assert built.load().steps.is_empty()


def test_a_step_begins_with_the_operator_of_its_first_launch() -> None:
    built = _loop(_MODEL, 4)
    begins = [1_000 + call * len(_MODEL) * _EACH for call in range(4)]
    for begin in begins:
        built.operator("aten::embedding", at=begin - 700, lasts=5_000)
    starts, _ = _found(built)
    assert starts == [begin - 700 - (begins[0] - 700) for begin in begins]


def test_a_recording_that_lost_the_kernels_of_its_end_shows_no_steps() -> None:
    built = _loop(_MODEL, 4)
    end = 1_000 + 4 * len(_MODEL) * _EACH
    for number in range(40):
        built.runtime("cudaLaunchKernel", at=end + number * _EACH, lasts=1_000, correlation=900_000 + number)
    assert built.load().steps.is_empty()


def test_operators_stand_for_kernels_where_nothing_ran_on_a_device() -> None:
    built, at = trace(), 1_000
    for _ in range(4):
        for name in _MODEL:
            built.operator(f"aten::{name}", at=at, lasts=8_000)
            built.operator("aten::empty", at=at + 100, lasts=100)
            at += _EACH
    starts, _ = _found(built)
    assert starts == [call * len(_MODEL) * _EACH for call in range(4)]


@given(
    unit=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    times=st.integers(3, 8),
    before=st.lists(st.integers(0, 3), max_size=30),
)
def test_the_period_that_covers_most_of_the_end(unit: list[int], times: int, before: list[int]) -> None:
    token = np.array([*before, *unit * times], np.int64)
    total = len(token)

    def covered(one: int) -> int:
        length = one
        while length < total and token[total - 1 - length] == token[total - 1 - length + one]:
            length += 1
        return length

    options = [(covered(one), -one) for one in range(1, total // 3 + 1)]
    most, shortest = max((length, one) for length, one in options if length >= -3 * one)
    assert _period(token) == (-shortest, most)
