"""Where a cause spends its time: by time and not by calls, at the user's innermost frame, or said not to be known."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest
from tests.diagnosis.cases import case_of

from whystall.diagnosis.candidate import Code
from whystall.diagnosis.finding import CodeLocation
from whystall.diagnosis.run_facts import RunFacts
from whystall.diagnosis.where import Place, code_of, heaviest
from whystall.replay.graph import NodeKind
from whystall.run_folder.observations import Observations, WindowPlace
from whystall.testing import TraceBuilder, trace
from whystall.testing.builder import EPOCH_NS
from whystall.vocabulary.frames import owner

STEP: Final = 1_000_000
LIBRARY: Final = "torch/nn/functional.py(2263): linear"


def recorded(calls: list[tuple[list[str], int]], *, stacks: bool = False) -> TraceBuilder:
    """Four steps in which kernels of some lengths are launched under frames, the outermost first."""
    built = trace()
    for step in range(4):
        begin = step * STEP
        built.step(step, at=begin, lasts=STEP)
        at, free = begin + 1_000, begin + 2_000
        for frames, lasts in calls:
            for depth, frame in enumerate(() if stacks else frames):
                built.python(frame, at=at + depth, lasts=10_000 - 2 * depth, **{"Python id": at + depth})
            told: dict[str, Any] = {"Call stack": ";".join(reversed(frames))} if stacks else {}
            built.operator("aten::mm", at=at + 1_000, lasts=8_000, **told)
            free = max(free, at + 4_000)
            built.launch("gemm", at=at + 2_000, runs_at=free, lasts=lasts)
            at, free = at + 12_000, free + lasts
    return built


def places(built: TraceBuilder) -> Code:
    case = case_of(built)
    return code_of(case, case.replayed.kind == NodeKind.DEVICE)


@pytest.mark.parametrize("stacks", [False, True])
def test_lines_go_by_time_and_not_by_calls(*, stacks: bool) -> None:
    """Nine short kernels of one line against one long of another, in calls of functions and in stacks of operators."""
    often = (["train.py(3): main", "model.py(10): often", LIBRARY], 5_000)
    once = (["train.py(3): main", "model.py(20): once", LIBRARY], 455_000)
    found = places(recorded([often] * 9 + [once], stacks=stacks))
    assert [(place.line, place.share) for place in found.lines] == [(20, 0.91), (10, 0.09)]
    assert found.explains == pytest.approx(1)


def test_what_compilers_write_and_libraries_do_is_told_at_the_line_that_calls_it() -> None:
    frames = ["train.py(3): main", "/tmp/torchinductor_me/ab/cab.py(57): call", "enum.py(1): __new__"]  # noqa: S108 - a name
    assert [place.file for place in places(recorded([(frames, 50_000)])).lines] == ["train.py"]


def test_a_library_is_named_only_where_nobody_else_called() -> None:
    inside = "transformers/models/bert/modeling_bert.py(181): forward"
    assert [place.file for place in places(recorded([([inside, LIBRARY], 50_000)])).lines] == [
        inside.split("(", maxsplit=1)[0]
    ]
    both = recorded([(["train.py(3): main", inside, LIBRARY], 50_000)])
    assert [place.file for place in places(both).lines] == ["train.py"]


def test_the_profilers_own_calls_are_nobodys() -> None:
    """What it does is no part of the cause, although a line of the user's calls it."""
    profiled = (["train.py(3): main", "torch/profiler/profiler.py(811): step", "torch/cuda/__init__.py(9): f"], 300_000)
    own = (["train.py(3): main", "model.py(10): forward"], 50_000)
    assert [(place.file, place.share) for place in places(recorded([profiled, own])).lines] == [("model.py", 1.0)]


def test_lines_that_explain_less_than_half_are_not_named() -> None:
    known, unknown = (["model.py(10): forward"], 50_000), ([LIBRARY], 200_000)
    assert places(recorded([known, unknown])) == Code((), 0.2)


def test_frames_of_a_thread_that_waits_take_no_lines_from_stacks_of_operators() -> None:
    calls = [(["train.py(10): main", "train.py(27): step"], 300_000)]
    beside = recorded(calls, stacks=True)
    beside.python("threading.py(589): wait", at=0, lasts=4 * STEP, thread=77)
    assert places(beside) == places(recorded(calls, stacks=True))
    assert [(one.file, one.line) for one in places(beside).lines] == [("train.py", 27)]


@pytest.mark.parametrize("stacks", [False, True])  # older recordings without stacks have empty ones
def test_without_stacks_nothing_is_said(*, stacks: bool) -> None:
    assert places(recorded([([], 50_000)], stacks=stacks)) == Code((), None)


def test_functions_of_one_name_are_told_at_the_line_that_stands_out() -> None:
    """Each class of a model has a forward: none explains half, and one takes more than the others."""
    lines: dict[Place | None, float] = {
        ("model.py", line, "forward"): share for line, share in ((10, 24.0), (20, 15.0), (30, 6.0), (40, 6.0))
    }
    elsewhere: dict[Place | None, float] = {("train.py", line, "step"): 1.0 for line in range(10)}
    found = heaviest({**lines, **elsewhere, None: 39.0})
    assert found.lines[0] == CodeLocation(file="model.py", line=10, symbol="forward", share=0.24)
    assert found.lines[1] == CodeLocation(file="train.py", line=None, symbol="step", share=0.1)
    assert found.explains == pytest.approx(0.61)


def test_many_lines_of_one_function_are_told_as_the_function() -> None:
    found = heaviest({("train.py", line, "augment"): 1.0 for line in range(20)})
    assert found == Code((CodeLocation(file="train.py", line=None, symbol="augment", share=1.0),), 1.0)


@pytest.mark.parametrize("inner", [False, True])
def test_backward_is_told_at_the_line_of_its_forward(*, inner: bool) -> None:
    """Also what autograd's operators call: only these name their forward."""
    built = trace()
    for step in range(4):
        begin = step * STEP
        built.step(step, at=begin, lasts=STEP)
        built.python("model.py(10): forward", at=begin + 1_000, lasts=9_000, **{"Python id": step})
        built.operator("aten::mm", at=begin + 2_000, lasts=7_000, **{"Sequence number": step, "Fwd thread id": 0})
        built.launch("gemm", at=begin + 3_000, runs_at=begin + 5_000, lasts=10_000)
        more = {"Sequence number": step, "Fwd thread id": 1}
        built.operator(
            "autograd::engine::evaluate_function: MmBackward0", at=begin + 30_000, lasts=9_000, thread=9, **more
        )
        if inner:
            built.operator("aten::mm", at=begin + 31_000, lasts=7_000, thread=9)
        built.launch("gemm", at=begin + 32_000, runs_at=begin + 35_000, lasts=90_000, thread=9)
    assert places(built).lines[0].line == 10
    assert places(built).explains == pytest.approx(1)


@pytest.mark.parametrize(
    ("file", "whose"),
    [
        ("train.py", "user"),
        ("/home/me/project/torch_utils/model.py", "user"),
        ("profile.py", "user"),
        ("vllm/v1/worker/gpu_model_runner.py", "user"),
        ("/opt/conda/lib/python3.10/site-packages/torch/nn/modules/linear.py", "nobody"),
        ("/opt/conda/lib/python3.10/contextlib.py", "nobody"),
        ("torch/_ops.py", "nobody"),
        ("<eval_with_key>.4", "nobody"),
        ("/venv/lib/python3.11/site-packages/lightning/pytorch/loops/fit_loop.py", "library"),
        ("accelerate/optimizer.py", "library"),
    ],
)
def test_whose_code_a_file_is(file: str, whose: str) -> None:
    assert owner(file) == whose


def test_masks_of_no_nodes_have_no_places() -> None:
    case = case_of(recorded([(["model.py(10): forward"], 50_000)]))
    assert code_of(case, np.zeros(len(case.replayed.start), np.bool_)) == Code((), None)


LOOK_EVERY: Final = 500_000


def looked_at(line: int, instants: list[int], *, leaf: str = "torch.nn.functional:linear") -> WindowPlace:
    return WindowPlace(
        file="job.py",
        line=line,
        function="main",
        text=f"line {line}",
        leaf=leaf,
        at_unix_ns=[EPOCH_NS + at for at in instants],
    )


def of_products(*seen: WindowPlace) -> Code:
    """Four steps of a product of 8 ms and a pause of 2 ms on a CPU, of which the products' lines are asked for."""
    built = trace()
    for step in range(4):
        built.operator("aten::mm", at=step * 10_000_000, lasts=8_000_000)
        built.step(step, at=step * 10_000_000, lasts=10_000_000)
    case = case_of(built, facts=RunFacts(observed={0: Observations(in_windows=seen)}))
    products = (case.replayed.kind == NodeKind.HOST) & (case.replayed.duration == 8_000_000)
    return code_of(case, products)


def test_without_stacks_looks_in_the_window_tell_the_lines() -> None:
    """Looks every half a millisecond: sixteen in each product, twelve of one line and four of another."""
    steps = range(0, 40_000_000, 10_000_000)
    most = [begin + at for begin in steps for at in range(0, 6_000_000, LOOK_EVERY)]
    few = [begin + at for begin in steps for at in range(6_000_000, 8_000_000, LOOK_EVERY)]
    pauses = [begin + at for begin in steps for at in range(8_000_000, 10_000_000, LOOK_EVERY)]
    found = of_products(looked_at(7, most), looked_at(9, few), looked_at(11, pauses))
    assert [(place.line, place.symbol, place.share) for place in found.lines] == [
        (7, "line 7", 0.75),
        (9, "line 9", 0.25),
    ]


def test_a_few_looks_tell_nothing_and_those_at_a_backward_pass_little() -> None:
    steps = range(0, 40_000_000, 10_000_000)
    assert of_products(looked_at(7, [1_000_000, 11_000_000])).lines == ()
    engine = looked_at(5, [begin + at for begin in steps for at in range(0, 6_000_000, LOOK_EVERY)], leaf=ENGINE)
    forward = looked_at(7, [begin + 7_000_000 for begin in steps] + [begin + 7_500_000 for begin in steps])
    assert [place.line for place in of_products(engine, forward).lines] == [7]
    assert [place.line for place in of_products(engine).lines] == [5]


ENGINE: Final = "torch.autograd.graph:_engine_run_backward"
