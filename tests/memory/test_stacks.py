"""Which line a stack names, in the forms in which torch writes stacks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.memory.native import (
    ADDRESSES,
    ENGINE,
    INTERPRETER,
    MAIN,
    OFFSETS,
    SOURCES,
    UNWIND,
    backward,
    full_stack,
    module,
    operator,
)
from tests.memory.program import MIB, NO_FRAMES, TORCH, Frames, Program, training
from tests.memory.test_explain import told

from whystall.memory.explain import explain
from whystall.memory.read import read_snapshot
from whystall.memory.results import Holder
from whystall.report.document import as_text
from whystall.report.memory_text import memory_document

LIBRARY = "/venv/lib/python3.11/site-packages/somelib"


def holder(folder: Path, frames: Frames) -> Holder:
    program = Program()
    program.alloc(MIB, frames)
    (found,) = told(folder, program.snapshot()).peak.holders
    return found


@pytest.mark.parametrize("between", [INTERPRETER, SOURCES, ADDRESSES, OFFSETS, NO_FRAMES])
def test_the_innermost_line_of_the_users_is_named_whatever_c_frames_stand_around_it(
    tmp_path: Path, between: Frames
) -> None:
    linear = ("forward", f"{TORCH}/nn/modules/linear.py", 134)
    found = holder(tmp_path, full_stack(module(41, (linear,)), between=between))

    assert (found.site, found.function) == ("model.py:41", "forward")


def test_python_frames_that_found_no_place_among_the_others_stand_behind_them(tmp_path: Path) -> None:
    """Without symbols nothing says where the interpreter ran: torch then writes all Python frames last."""
    found = holder(tmp_path, (*UNWIND, *OFFSETS, *OFFSETS, *module(41)))

    assert (found.site, found.function) == ("model.py:41", "forward")


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("/home/me/job/my-basics/net.py", "my-basics/net.py:7"),
        ("/home/me/job/a b/net.py", "a b/net.py:7"),
        ("/home/me/job/scripts/../net.py", "net.py:7"),
        ("/tmp/ipykernel_77/881.py", "ipykernel_77/881.py:7"),  # noqa: S108 - a name alone
    ],
)
def test_folders_that_all_share_are_left_out_and_no_others(tmp_path: Path, file: str, said: str) -> None:
    program = Program()
    program.alloc(MIB, full_stack((("forward", file, 7), MAIN)))
    program.alloc(2 * MIB, full_stack((MAIN,)))

    sites = [one.site for one in told(tmp_path, program.snapshot()).peak.holders]

    assert sites == ["train.py:50", said]


def test_without_a_line_of_the_users_a_librarys_is_named_not_the_plumbing_around_it(tmp_path: Path) -> None:
    python = (
        ("silu", f"{TORCH}/nn/functional.py", 2395),
        ("_call_impl", f"{TORCH}/nn/modules/module.py", 1790),
        ("forward", f"{LIBRARY}/layers.py", 88),
        ("_call_impl", f"{TORCH}/nn/modules/module.py", 1790),
        ("main", f"{LIBRARY}/train.py", 12),
        ("_run_code", "/usr/lib/python3.11/runpy.py", 88),
        ("<module>", "<string>", 1),
    )
    found = holder(tmp_path, full_stack(python))

    assert (found.site, found.function) == ("somelib/layers.py:88", "forward")


def test_a_users_line_is_named_with_the_line_of_the_librarys_model_that_it_called(tmp_path: Path) -> None:
    call = ("_call_impl", f"{TORCH}/nn/modules/module.py", 1790)
    found = holder(tmp_path, full_stack((("attend", f"{LIBRARY}/model.py", 5), call, MAIN)))
    helper = holder(tmp_path, full_stack((("rearrange", f"{LIBRARY}/ops.py", 5), *module(9))))

    assert (found.site, found.within) == ("train.py:50", "somelib/model.py:5 attend")
    assert (helper.site, helper.within) == ("model.py:9", None)  # no module of the library's was called


def test_where_torch_alone_has_lines_the_one_that_does_something_is_named(tmp_path: Path) -> None:
    reduce = ("foreach_reduce", f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_collectives.py", 522)
    apply = ("apply", f"{TORCH}/autograd/function.py", 317)
    decorated = ("decorate_context", f"{TORCH}/utils/_contextlib.py", 124)

    found = holder(tmp_path, (*full_stack((decorated, reduce, apply))[:-2], *ENGINE))

    assert found.site == "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:522"


WORKSPACE = ("at::cuda::setWorkspaceForHandle(cublasContext*)", "??", 0)
NCCL = ("c10d::ProcessGroupNCCL::allreduce_impl(at::Tensor&)", "??", 0)
MANGLED = ("_ZN2at6native5emptyEv", "libtorch_cpu.so", 0)


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        (backward("MmBackward0"), "MmBackward0: aten::mm"),
        (backward("ThAddmmBackward0", "addmm"), "ThAddmmBackward0: aten::addmm"),
        ((*UNWIND, WORKSPACE, *operator("mm"), *ENGINE), "cuBLAS workspace: aten::mm"),
        ((*UNWIND, NCCL, ("start_thread", "??", 0)), "c10d::ProcessGroupNCCL::allreduce_impl"),
        ((*UNWIND, *operator("empty_like")), "aten::empty_strided"),
        ((*UNWIND, ("torch::autograd::AccumulateGrad::apply(std::vector<at::Tensor>&&)", "accumulate_grad.cpp", 0)),
         "AccumulateGrad"),
        ((*UNWIND, ("my_extension::scratch(int)", "my_ext.so", 0)), "my_extension::scratch"),
        ((*UNWIND, MANGLED), "_ZN2at6native5emptyEv"),
        ((*UNWIND, ("??", "??", 0), ("0x7f00", "", 0)), "no symbol was recorded"),
        (OFFSETS, "no symbol was recorded"),
    ],
)  # fmt: skip
def test_where_c_alone_has_frames_the_one_that_says_most_is_named(tmp_path: Path, frames: Frames, said: str) -> None:
    found = holder(tmp_path, frames)

    assert (found.site, found.function) == ("(C++)", said)


def test_no_row_is_blank_where_the_program_has_set_no_label(tmp_path: Path) -> None:
    program = Program()
    program.alloc(3 * MIB, full_stack(module(5)), user_metadata="")
    program.alloc(2 * MIB, NO_FRAMES, user_metadata=" ")
    program.alloc(MIB, full_stack(module(6)), user_metadata="kv cache")

    holders = told(tmp_path, program.snapshot()).peak.holders
    text = as_text(memory_document([explain(read_snapshot(tmp_path / "snapshot.pickle"))], 100), 100)

    assert [(one.site, one.label) for one in holders] == [
        ("model.py:5", None),
        (None, None),
        ("model.py:6", "kv cache"),
    ]
    assert "model.py:5 forward" in text
    assert "\nkv cache" in text


def test_a_long_path_keeps_its_file_line_and_function(tmp_path: Path) -> None:
    program = training(2)
    long = "/home/me/job/a-folder-with-a-name/another/of-the-same/yet-another-one"
    program.alloc(500 * MIB, full_stack(module(138, file=f"{long}/attention.py")))

    path = tmp_path / "snapshot.pickle"
    told(tmp_path, program.snapshot())

    assert "/attention.py:138 forward " in as_text(memory_document([explain(read_snapshot(path))], 80), 80)


def test_the_same_program_is_told_the_same_with_and_without_c_frames(tmp_path: Path) -> None:
    plain = training(4).snapshot()
    value = training(4).snapshot()
    for event in value["device_traces"][0]:
        frames = tuple((one["name"], one["filename"], one["line"]) for one in event["frames"])
        full = full_stack(frames) if frames else backward("MmBackward0")
        event["frames"] = [{"name": name, "filename": file, "line": line} for name, file, line in full]

    one, other = told(tmp_path, plain), told(tmp_path, value)

    assert other.peak.held == one.peak.held
    assert [(h.site, h.bytes) for h in other.peak.holders if h.site != "(C++)"] == [
        (h.site, h.bytes) for h in one.peak.holders if h.site is not None
    ]
