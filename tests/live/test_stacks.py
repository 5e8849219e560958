"""What py-spy writes is read: profiles by process and thread, looks with the lock's holder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from whystall.errors import InputError
from whystall.live.observation import Look
from whystall.live.stacks import look_of, read_speedscope, recording
from whystall.vocabulary.frames import Frame

# As py-spy 0.4.2 writes it: labels of process and thread are frames without a file.
TOLD = {
    "shared": {
        "frames": [
            {"name": "spin", "file": "/job/a.py", "line": 5, "col": None},
            {"name": "<module>", "file": "/job/a.py", "line": 16, "col": None},
            {"name": "thread (7): MainThread", "file": "", "line": 0, "col": None},
            {"name": 'process 7:"python a.py --token x"', "file": "", "line": 0, "col": None},
        ]
    },
    "profiles": [
        {"name": 'Process 7 Thread 7 "MainThread"', "samples": [[3, 2, 1, 0], [3, 2, 1]], "weights": [0.01, 0.01]},
        {"name": 'Process 8 Thread 0x9 "loader worker"', "samples": [[3, 2]], "weights": [0.01]},
        {"name": "another kind of profile", "samples": [[0]]},
    ],
}


def test_stacks_stand_by_process_and_thread_the_outermost_first(tmp_path: Path) -> None:
    path = tmp_path / "stacks.json"
    path.write_text(json.dumps(TOLD))
    outer, inner = Frame("/job/a.py", 16, "<module>"), Frame("/job/a.py", 5, "spin")
    assert read_speedscope(path) == {(7, 7): [(outer, inner), (outer,)], (8, 9): [()]}


def test_a_look_tells_who_ran_and_who_held_the_lock() -> None:
    frames = [{"name": "inner", "filename": "a.py", "line": 2}, {"name": "outer", "filename": "a.py", "line": 9}]
    threads = [
        {"os_thread_id": 7, "active": False, "owns_gil": False, "frames": frames},
        {"os_thread_id": 9, "active": True, "owns_gil": True, "frames": []},
    ]
    assert look_of(threads, 7) == Look((Frame("a.py", 9, "outer"), Frame("a.py", 2, "inner")), ran=False, holder=9)
    assert look_of(threads, 8) is None
    assert look_of(threads[:1], 7) == Look(
        (Frame("a.py", 9, "outer"), Frame("a.py", 2, "inner")), ran=False, holder=None
    )


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Error: Permission denied (os error 13)", "may not read the memory of process 5"),
        ("Error: Failed to find python version from target process", "Failed to find python version"),
        ("", "it gave no stacks"),
    ],
)
def test_a_refusal_is_told_in_a_sentence(tmp_path: Path, said: str, told: str) -> None:
    program = tmp_path / "py-spy"
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    program.chmod(0o755)
    with recording(str(program), 5, 1) as stacks, pytest.raises(InputError, match=told):
        stacks()
