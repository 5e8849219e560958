"""What allocations are for, where the truth is known by how the program was written."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.memory.native import MAIN, UNWIND, backward, freed_by_autograd, full_stack, module, operator
from tests.memory.program import FOREACH, MIB, NO_FRAMES, STATE, TORCH, Frames, Program, forward
from tests.memory.test_explain import held, told

from whystall.memory.results import Category

_MODULE = f"{TORCH}/nn/modules/module.py"
LAYERS = 6
LINES = (10, 11, 12, 13)  # of a layer
CHECKPOINT = ("checkpoint", f"{TORCH}/utils/checkpoint.py", 512)


def line(number: int, *inner: tuple[str, str, int]) -> Frames:
    """A line of a layer that a loop calls, as Python's frames alone tell it."""
    return module(number, inner)


def a_forward_pass(program: Program, *, keeps: bool, cache: bool = False) -> list[int]:
    """Layers of four lines each; what a line makes is kept, or freed once the next has read it."""
    kept, last = [], None
    for _ in range(LAYERS):
        for number in LINES:
            key = program.alloc(MIB, line(number))
            if keeps:
                kept.append(key)
            elif last is not None:
                program.free(last, line(number))
            last = key
        if cache:
            kept += [program.alloc(2 * MIB, line(number)) for number in (20, 21)]  # keys and values
    if last is not None and not keeps:
        kept.append(last)
    return kept


def test_a_forward_pass_that_keeps_what_its_lines_make_has_gradients_on(tmp_path: Path) -> None:
    program = Program()
    a_forward_pass(program, keeps=True)

    peak = told(tmp_path, program.snapshot()).peak

    assert {one.category: one.bytes for one in peak.held} == {Category.ACTIVATIONS: LAYERS * len(LINES) * MIB}
    assert "gradients are on: 4 of 4 calls" in peak.holders[0].because


def test_a_forward_pass_without_gradients_keeps_no_activations(tmp_path: Path) -> None:
    program = Program()
    a_forward_pass(program, keeps=False)

    assert Category.ACTIVATIONS not in held(told(tmp_path, program.snapshot()))


def test_a_cache_of_keys_and_values_is_no_activation(tmp_path: Path) -> None:
    program = Program()
    a_forward_pass(program, keeps=False, cache=True)

    peak = told(tmp_path, program.snapshot()).peak

    by_line = {one.site: (one.category, one.because) for one in peak.holders}
    assert by_line["model.py:20"][0] is Category.UNKNOWN
    assert "too few lines keep" in by_line["model.py:20"][1]  # which evidence is missing


def test_layers_without_repetition_show_gradients_too(tmp_path: Path) -> None:
    kept, freed = Program(), Program()
    last: int | None = None
    for number in range(100, 112):
        kept.alloc(MIB, line(number))
        key = freed.alloc(MIB, line(number))
        if last is not None:
            freed.free(last, line(number))
        last = key

    assert held(told(tmp_path, kept.snapshot())) == {Category.ACTIVATIONS: 12 * MIB}
    assert Category.ACTIVATIONS not in held(told(tmp_path, freed.snapshot()))


def test_a_value_for_a_moment_is_a_temporary_where_gradients_are_on(tmp_path: Path) -> None:
    program = Program()
    a_forward_pass(program, keeps=True)
    moment = program.alloc(64 * MIB, line(30))
    program.free(moment, line(30))
    program.alloc(MIB, line(31))

    assert held(told(tmp_path, program.snapshot()))[Category.TEMPORARIES] == 64 * MIB


def test_passes_without_a_backward_pass_free_what_they_kept_only_later(tmp_path: Path) -> None:
    program = Program()
    for _ in range(3):
        for key in a_forward_pass(program, keeps=True):
            program.free(key, (MAIN,))

    assert held(told(tmp_path, program.snapshot()))[Category.ACTIVATIONS] >= (LAYERS - 1) * len(LINES) * MIB


def test_checkpoints_keep_little_and_need_a_backward_pass(tmp_path: Path) -> None:
    program = Program()
    for _ in range(LAYERS):
        program.free(program.alloc(MIB, line(10, CHECKPOINT)), line(10, CHECKPOINT))
        program.alloc(2 * MIB, line(11, CHECKPOINT))

    peak = told(tmp_path, program.snapshot()).peak

    assert {one.category for one in peak.held} == {Category.ACTIVATIONS}
    assert "torch.utils.checkpoint" in peak.holders[0].because


def test_what_a_line_kept_in_earlier_steps_it_keeps_in_the_last(tmp_path: Path) -> None:
    program = Program()
    key = program.alloc(MIB, forward(40))
    program.alloc(MIB)
    program.free(key, NO_FRAMES)
    program.free(program.alloc(MIB, FOREACH))
    program.alloc(9 * MIB, forward(40))
    program.out_of_memory(900 * MIB, 5 * MIB, forward(41))

    peak = told(tmp_path, program.snapshot()).peak

    (last,) = [one for one in peak.holders if one.site == "model.py:40"]
    assert (last.category, last.bytes) == (Category.ACTIVATIONS, 9 * MIB)
    assert "earlier passes" in last.because


def test_what_a_call_made_before_the_record_is_known_by_what_the_call_keeps_in_it(tmp_path: Path) -> None:
    program = Program()
    weights = program.alloc(64 * MIB, (MAIN,))
    a_forward_pass(program, keeps=True)
    assert weights

    peak = told(tmp_path, program.snapshot(lost=len(program.events) // 3)).peak

    parts = {one.category: one.bytes for one in peak.held}
    assert parts == {Category.BEFORE: 64 * MIB, Category.ACTIVATIONS: LAYERS * len(LINES) * MIB}
    assert any("before the record began; the same call keeps" in one.because for one in peak.holders)


# --- C++ frames -------------------------------------------------------------------------------------------------------


def test_what_autograd_had_saved_is_an_activation_though_no_module_made_it(tmp_path: Path) -> None:
    program = Program()
    own = program.alloc(4 * MIB, full_stack((MAIN,), "randn"))
    loss = (("cross_entropy", f"{TORCH}/nn/functional.py", 3504), MAIN)
    saved = program.alloc(3 * MIB, full_stack(loss, "_log_softmax"))
    calling = (("backward", f"{TORCH}/_tensor.py", 630), MAIN)
    program.alloc(512, full_stack((("_make_grads", f"{TORCH}/autograd/__init__.py", 230), *calling), "ones_like"))
    moment = program.alloc(2 * MIB, backward("NllLossBackward0", "nll_loss_backward"))
    gradient = program.alloc(5 * MIB, backward("LogSoftmaxBackward0", "_log_softmax_backward_data"))
    program.free(moment, backward("LogSoftmaxBackward0"))
    program.free(saved, freed_by_autograd("LogSoftmaxBackward0"))
    program.free(program.keys - 2, full_stack(calling))  # the engine has ended, `backward` is about to return
    assert (own, gradient) == (1, 5)

    device = told(tmp_path, program.snapshot())

    by_category = held(device)
    assert by_category[Category.ACTIVATIONS] == 3 * MIB
    assert by_category[Category.TEMPORARIES] == 2 * MIB
    assert by_category[Category.GRADIENTS] == 5 * MIB + 512
    assert by_category[Category.PROGRAM] == 4 * MIB
    assert device.peak.phase == "backward"


def test_what_autograd_gives_back_was_saved_though_the_record_began_after_it_was_made(tmp_path: Path) -> None:
    program = Program()
    weights, saved = program.alloc(MIB, (MAIN,)), program.alloc(8 * MIB, full_stack(module(4)))
    made = len(program.events)
    program.alloc(2 * MIB, backward("MmBackward0"))
    program.free(saved, freed_by_autograd("MmBackward0"))
    assert weights

    by_category = held(told(tmp_path, program.snapshot(lost=made)))

    assert (by_category[Category.ACTIVATIONS], by_category[Category.BEFORE]) == (8 * MIB, MIB)


@pytest.mark.parametrize(
    "name", ["torch::autograd::AccumulateGrad::apply()", "_ZN5torch8autograd14AccumulateGrad5applyEv"]
)
def test_a_gradient_is_known_by_accumulate_grad(tmp_path: Path, name: str) -> None:
    program = Program()
    program.alloc(MIB, forward(1))
    program.alloc(2 * MIB, (*UNWIND, (name, "accumulate_grad.cpp", 0)))

    assert held(told(tmp_path, program.snapshot()))[Category.GRADIENTS] == 2 * MIB


def test_the_loss_between_the_passes_belongs_to_the_forward_pass(tmp_path: Path) -> None:
    program = Program()
    kept = program.alloc(MIB, full_stack(module(4)))
    loss = program.alloc(8 * MIB, full_stack((("my_loss", "/home/me/job/loss.py", 7), MAIN), "logsumexp"))
    program.alloc(MIB, backward("MmBackward0"))
    for key in (loss, kept):
        program.free(key, backward("MmBackward0"))

    device = told(tmp_path, program.snapshot())

    assert held(device)[Category.ACTIVATIONS] == 9 * MIB


def test_workspaces_of_libraries_are_neither_activations_nor_gradients(tmp_path: Path) -> None:
    workspace = ("at::cuda::getCUDABlasLtWorkspace()", "??", 0)
    program = Program()
    program.alloc(MIB, full_stack(module(4)))
    program.alloc(8 * MIB, (*UNWIND, workspace, *full_stack(module(5))))
    program.alloc(MIB, backward("MmBackward0"))

    assert held(told(tmp_path, program.snapshot()))[Category.WORKSPACE] == 8 * MIB


# --- threads and ranks ------------------------------------------------------------------------------------------------


def test_a_thread_that_begins_in_a_hook_of_torchs_is_autograds(tmp_path: Path) -> None:
    """Python's frames alone: the backward pass of a Function of the user's own, and FSDP's hook after it."""
    apply = ("apply", f"{TORCH}/autograd/function.py", 317)
    hook = ("post_backward", f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_param_group.py", 600)
    reduce = ("foreach_reduce", f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_collectives.py", 522)
    program = Program()
    kept = program.alloc(8 * MIB, module(4))
    moment = program.alloc(2 * MIB, (("backward", "/home/me/job/ops.py", 30), apply))
    program.free(moment, (("backward", "/home/me/job/ops.py", 31), apply))
    program.free(kept, (hook,))
    scattered = program.alloc(4 * MIB, (reduce, hook))
    program.free(program.alloc(6 * MIB, (reduce, hook)), (hook,))
    program.alloc(16 * MIB, STATE)
    assert scattered

    device = told(tmp_path, program.snapshot())

    assert [one.phase for one in device.phases] == ["forward", "backward", "optimizer"]
    assert held(device) == {Category.OPTIMIZER_STATE: 16 * MIB, Category.GRADIENTS: 4 * MIB}


def test_shards_are_parameters_and_gathered_ones_are_communication(tmp_path: Path) -> None:
    file = f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_param.py"
    init = ("__init__", file, 192)
    program = Program()
    program.alloc(4 * MIB, (("_init_sharded_param", file, 228), init, MAIN))
    gather = ("init_all_gather_outputs", file, 616)
    program.alloc(8 * MIB, (gather, ("_call_impl", _MODULE, 1790), MAIN))

    assert held(told(tmp_path, program.snapshot())) == {
        Category.COMMUNICATION: 8 * MIB,
        Category.PARAMETERS: 4 * MIB,
    }


def test_what_the_optimizer_makes_when_memory_runs_out_is_no_state(tmp_path: Path) -> None:
    program = Program()
    program.alloc(3 * MIB, STATE)
    program.alloc(2 * MIB, FOREACH)
    program.out_of_memory(900 * MIB, MIB, FOREACH)

    assert held(told(tmp_path, program.snapshot())) == {
        Category.OPTIMIZER_STATE: 3 * MIB,
        Category.TEMPORARIES: 2 * MIB,
    }


def test_an_optimizer_of_the_users_own_is_known_by_its_base_class(tmp_path: Path) -> None:
    base = ("wrapper", f"{TORCH}/optim/optimizer.py", 526)
    program = Program()
    for _ in range(5):
        program.alloc(MIB, full_stack((("step", "/home/me/job/my_adam.py", 33), base, MAIN), "zeros_like"))
    program.free(program.alloc(9 * MIB, full_stack((("step", "/home/me/job/my_adam.py", 40), base, MAIN))))

    assert held(told(tmp_path, program.snapshot())) == {
        Category.TEMPORARIES: 9 * MIB,
        Category.OPTIMIZER_STATE: 5 * MIB,
    }


def test_the_backward_pass_that_was_under_way_is_not_guessed_at(tmp_path: Path) -> None:
    program = Program()
    program.alloc(MIB, full_stack(module(4)))
    program.alloc(2 * MIB, backward("MmBackward0"))
    program.out_of_memory(900 * MIB, MIB, backward("MmBackward0"))

    peak = told(tmp_path, program.snapshot()).peak

    (found,) = [one for one in peak.holders if one.site == "(C++)"]
    assert found.category is Category.UNKNOWN
    assert found.because.endswith("a gradient, or a value on the way to one")


def test_what_constructors_make_on_the_device_are_parameters_and_what_else_the_program_makes_is_its_own(
    tmp_path: Path,
) -> None:
    program = Program()
    program.alloc(4 * MIB, full_stack((("__init__", "/home/me/job/layers.py", 9), MAIN), "empty"))
    program.alloc(2 * MIB, full_stack((("load", "/home/me/job/data.py", 5), MAIN), "_to_copy"))
    kept = program.alloc(MIB, full_stack(module(4)))
    program.alloc(MIB, backward("MmBackward0"))
    program.free(kept, backward("MmBackward0"))
    norm = program.alloc(3 * MIB, full_stack((("clip", "/home/me/job/train.py", 60), MAIN), "norm"))
    program.free(norm, full_stack((("clip", "/home/me/job/train.py", 60), MAIN)))
    program.free(program.alloc(MIB, FOREACH))

    by_category = held(told(tmp_path, program.snapshot()))

    assert by_category[Category.PARAMETERS] == 4 * MIB
    assert by_category[Category.PROGRAM] == 2 * MIB
    assert by_category[Category.TEMPORARIES] == 3 * MIB


def test_operators_of_torch_alone_are_no_program(tmp_path: Path) -> None:
    program = Program()
    program.alloc(MIB, full_stack(module(4)))
    program.alloc(2 * MIB, (*UNWIND, *operator("zeros")))

    assert Category.PROGRAM not in held(told(tmp_path, program.snapshot()))
