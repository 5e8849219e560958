"""What would have made room where memory ran out, on programs whose allocator is simulated a second time."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.memory.native import MAIN, full_stack, module
from tests.memory.program import MIB, PARAMETERS, STATE, TORCH, Frames, Program
from tests.memory.test_explain import read, told

from whystall.memory.allocator_settings import AllocatorSettings
from whystall.memory.explain import explain
from whystall.memory.results import OutOfMemory
from whystall.report.document import as_text
from whystall.report.memory_text import memory_document

LOSS = (("cross_entropy", f"{TORCH}/nn/functional.py", 3504), ("criterion", "/home/me/job/loss.py", 21), MAIN)
SETUP: Frames = (("main", "/home/me/job/train.py", 9), MAIN)


def ran_out(program: Program, size: int, frames: Frames) -> Program:
    """The program with a request that its device has no room for."""
    whole = program.settings.device_bytes
    assert whole is not None
    with pytest.raises(MemoryError):
        program.alloc(size, frames)
    program.out_of_memory(size, whole - program.naive.row[2], frames)
    return program


def out_of(folder: Path, program: Program) -> OutOfMemory:
    return told(folder, program.snapshot()).out_of_memory[-1]


def layers(program: Program, sizes: tuple[int, ...] = (40, 20, 10)) -> Program:
    """Six layers whose lines keep so many MiB each."""
    for _ in range(6):
        for number, size in enumerate(sizes, 40):
            program.alloc(size * MIB, full_stack(module(number)))
    return program


def fragmented(device: int) -> Program:
    """Four segments of 100 MiB each, of which 60 are held and no request of more than 40 can use the rest."""
    program = Program(AllocatorSettings(device_bytes=device * MIB))
    for key in [program.alloc(100 * MIB, SETUP) for _ in range(4)]:
        program.free(key, SETUP)
    for _ in range(4):
        program.alloc(60 * MIB, SETUP)
    return program


def test_expandable_segments_are_the_remedy_where_they_serve_the_request(tmp_path: Path) -> None:
    program = ran_out(fragmented(500), 150 * MIB, SETUP)

    out = out_of(tmp_path, program)

    assert (out.missing_bytes, out.segments) == (50 * MIB, None)
    first, *_ = out.rescues
    assert first.remedy == "PYTORCH_ALLOC_CONF=expandable_segments:True"
    assert (first.frees_bytes, first.enough) == (150 * MIB, True)  # no more than what was asked for
    assert "110 MiB left" in first.known_by  # 500 - 4 x 60 - 150


def test_they_are_none_where_the_request_fails_all_the_same(tmp_path: Path) -> None:
    program = layers(Program(AllocatorSettings(device_bytes=500 * MIB)))
    ran_out(program, 200 * MIB, full_stack(module(43)))

    out = out_of(tmp_path, program)
    device = told(tmp_path, program.snapshot())

    assert "no remedy" in str(out.segments)
    assert not any("expandable" in remedy for remedy in [one.remedy for one in out.rescues])
    assert not any("expandable" in remedy for remedy in [one.remedy for one in device.findings])
    first, *_ = out.rescues
    assert first.remedy.startswith("activation checkpointing")
    assert "model.py:40 (240 MiB), model.py:41 (120 MiB), model.py:42 (60 MiB)" in first.remedy
    assert (first.frees_bytes, first.enough) == (420 * MIB, True)


def test_they_are_none_where_the_backward_pass_to_come_needs_as_much_again(tmp_path: Path) -> None:
    program = layers(fragmented(240 + 840 + 150 + 90), (50, 45, 45))
    ran_out(program, 150 * MIB, full_stack(module(43)))

    out = out_of(tmp_path, program)

    assert "would serve this request and leave 90 MiB" in str(out.segments)
    assert not any("expandable" in one.remedy for one in out.rescues)


def test_logits_and_loss_are_named_with_what_they_hold_and_asked_for(tmp_path: Path) -> None:
    program = layers(Program(AllocatorSettings(device_bytes=1200 * MIB)))
    program.alloc(200 * MIB, full_stack(module(90), "mm"))  # logits in 16 bits
    copied = (("criterion", "/home/me/job/loss.py", 22), MAIN)
    program.alloc(400 * MIB, full_stack(copied, "_to_copy"))  # and in 32
    ran_out(program, 400 * MIB, full_stack(LOSS, "_log_softmax"))

    out = out_of(tmp_path, program)

    assert (out.site, out.function, out.asked_bytes) == ("loss.py:21", "criterion", 400 * MIB)
    first, second = out.rescues
    assert first.remedy.startswith("the loss in chunks")
    assert first.frees_bytes == (200 + 400 + 400) * MIB
    assert second.frees_bytes == 6 * 70 * MIB  # the layers, without the logits


def test_what_the_optimizer_holds_is_named_where_it_is_most(tmp_path: Path) -> None:
    program = Program(AllocatorSettings(device_bytes=500 * MIB))
    program.alloc(100 * MIB, PARAMETERS)
    program.alloc(200 * MIB, STATE)
    ran_out(program, 250 * MIB, STATE)

    first, second = out_of(tmp_path, program).rescues

    assert "8 bits" in first.remedy
    assert first.frees_bytes == 150 * MIB
    assert "divided among ranks" in second.remedy


def test_a_forward_pass_without_gradients_is_to_ask_for_less(tmp_path: Path) -> None:
    program = Program(AllocatorSettings(device_bytes=500 * MIB))
    weights = program.alloc(300 * MIB, SETUP)
    scores = program.alloc(100 * MIB, full_stack(module(70), "bmm"))
    assert (weights, scores) == (1, 2)
    ran_out(program, 150 * MIB, full_stack(module(71), "_softmax"))

    (only,) = out_of(tmp_path, program).rescues

    assert only.remedy.startswith("a smaller batch")
    assert (only.frees_bytes, only.enough) == (250 * MIB, True)


def test_the_first_thing_said_is_who_asked_for_how_much_and_what_holds_memory(tmp_path: Path) -> None:
    program = layers(Program(AllocatorSettings(device_bytes=500 * MIB)))
    ran_out(program, 200 * MIB, full_stack(module(43)))

    report = explain(read(tmp_path, program.snapshot()))
    lines = as_text(memory_document([report], 100), 100).splitlines()
    text = " ".join(" ".join(lines).split())

    assert text.startswith(
        "snapshot.pickle: device 0: model.py:43 forward asked for 200 MiB and found no room, with 420 MiB"
    )
    assert "100.0 % of it activations" in text
    assert text.index("- out of memory: 200 MiB asked for at model.py:43 forward") < text.index("- memory is held by")
    assert text.index("- remedy: activation checkpointing") < text.index("peak: 420 MiB")
    assert "120 MiB too little" in text
    assert all("memory." not in line for line in lines[: next(at for at, line in enumerate(lines) if "peak:" in line)])


def test_only_what_ran_out_last_is_looked_into(tmp_path: Path) -> None:
    program = layers(Program(AllocatorSettings(device_bytes=500 * MIB)))
    ran_out(program, 200 * MIB, full_stack(module(43)))
    ran_out(program, 300 * MIB, full_stack(module(44)))

    one, other = told(tmp_path, program.snapshot()).out_of_memory

    assert (one.rescues, one.held) == ((), ())
    assert other.rescues
    assert sum(part.bytes for part in other.held) == other.allocated_bytes
