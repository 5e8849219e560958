from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from tests.memory.program import MIB, Program, forward, training

from whystall.memory.explain import explain
from whystall.memory.read import read_snapshot
from whystall.memory.results import BatchRoom, DeviceMemory
from whystall.report.document import as_text
from whystall.report.memory_batch_text import told_room
from whystall.report.memory_text import memory_document


def told(folder: Path, program: Program, device_bytes: int | None = None) -> DeviceMemory:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(program.snapshot()))
    return explain(read_snapshot(path), device_bytes=device_bytes).devices[0]


def room(folder: Path, program: Program, device_bytes: int | None = None) -> BatchRoom:
    found = told(folder, program, device_bytes).batch
    assert found is not None
    return found


# Of the peak 24 MiB are activations; 4 of parameters, 8 of state and the 2 of a gradient stay.
def test_what_grows_with_the_batch_is_told_apart_and_a_batch_so_much_larger_fills_the_device(tmp_path: Path) -> None:
    found = room(tmp_path, training(5), 128 * MIB)

    assert (found.grows_bytes, found.stays_bytes, found.untold_bytes) == (24 * MIB, 14 * MIB, 0)
    assert (found.left_bytes, found.outside_bytes) == (90 * MIB, None)
    assert told_room(found) == (
        "a larger batch: activations stand in its way; at the peak of step 2 24.0 MiB grow with it (activations, "
        "input), 14.0 MiB do not (parameters, gradients and the optimizer's state); 90.0 MiB of the device are left, "
        "less what lies outside torch: at most 4.75 times the batch, if they grow as it does"
    )
    assert told(tmp_path, training(5, batch=4.75)).peak.allocated_bytes == 128 * MIB


def test_a_small_batch_leaves_parameters_in_the_way(tmp_path: Path) -> None:
    found = room(tmp_path, training(5, batch=0.5))

    assert (found.grows_bytes, found.stays_bytes, found.left_bytes) == (12 * MIB, 14 * MIB, None)
    assert "--device-memory" in str(found.left_unknown_because)
    assert "optimizer's state stand in its way" in told_room(found)
    assert "left" not in told_room(found)


def test_what_lies_outside_torch_is_taken_off_where_it_is_known(tmp_path: Path) -> None:
    program = training(5)
    reserved = sum(segment["total_size"] for segment in program.segments())
    program.out_of_memory(900 * MIB, 128 * MIB - reserved - 30 * MIB, forward(55))

    found = room(tmp_path, program, 128 * MIB)

    assert (found.outside_bytes, found.left_bytes) == (30 * MIB, 60 * MIB)
    assert "60.0 MiB of the device are left: at most 3.5 times" in told_room(found)


def test_a_device_smaller_than_the_peak_leaves_nothing_to_say(tmp_path: Path) -> None:
    found = room(tmp_path, training(5), 30 * MIB)

    assert (found.left_bytes, found.left_unknown_because) == (
        None,
        "more was allocated than the device is said to have",
    )


def without_parameters() -> Program:
    program = training(5)
    for event in program.events:
        if any(frame["name"] == "__init__" for frame in event["frames"]):
            event["frames"] = []
    for key, frames in program.frames.items():
        if any(name == "__init__" for name, _, _ in frames):
            program.frames[key] = ()
    return program


def with_unknown() -> Program:
    program = Program()
    program.alloc(100 * MIB, (("main", "/home/me/serve.py", 5),))
    job = training(5)
    shift = 1 << 44  # another address than that of the job's
    for event in program.events:
        event["addr"] += shift
    job.events[:0] = program.events
    return job


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (training(2), "too few"),
        (without_parameters(), "activations or parameters are not known"),
        (with_unknown(), "more than half of the peak"),
    ],
)
def test_nothing_is_said_of_what_is_not_known(tmp_path: Path, program: Program, why: str) -> None:
    device = told(tmp_path, program)

    assert device.batch is None
    assert why in str(device.no_batch_because)


def test_the_sentence_stands_in_the_document_only_where_it_is_known(tmp_path: Path) -> None:
    documents = []
    for steps in (5, 2):
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps(training(steps).snapshot()))
        documents.append(as_text(memory_document([explain(read_snapshot(path))], 100), 100))

    assert ["a larger batch" in text for text in documents] == [True, False]
