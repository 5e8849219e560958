from __future__ import annotations

import pickle
from pathlib import Path

from tests.memory.program import MIB, Program, forward

from whystall.memory.comparison import compare_snapshots
from whystall.memory.explain import explain
from whystall.memory.read import read_snapshot
from whystall.memory.results import MemoryReport


def report(folder: Path, *held: tuple[int, int]) -> MemoryReport:
    """What a program says that holds some bytes for each of some lines."""
    program = Program()
    for line, size in held:
        program.alloc(size, forward(line))
    path = folder / "one.pickle"
    path.write_bytes(pickle.dumps(program.snapshot()))
    return explain(read_snapshot(path))


def test_what_came_went_and_changed_is_told_by_line(tmp_path: Path) -> None:
    before = report(tmp_path, (1, 4 * MIB), (2, 2 * MIB), (3, 6 * MIB), (4, 8 * MIB))
    after = report(tmp_path, (1, 4 * MIB), (2, 3 * MIB), (5, MIB), (6, 2 * MIB))

    (found,) = compare_snapshots(before, after)

    told = {row.site: (row.before_bytes, row.after_bytes) for row in found.changes}
    assert told == {
        "model.py:2": (2 * MIB, 3 * MIB),
        "model.py:3": (6 * MIB, 0),
        "model.py:4": (8 * MIB, 0),
        "model.py:5": (0, MIB),
        "model.py:6": (0, 2 * MIB),
    }
    assert [row.site for row in found.changes][:2] == ["model.py:4", "model.py:3"]
    assert found.unchanged_bytes == 4 * MIB
    assert found.after_peak_bytes - found.before_peak_bytes == sum(new - old for old, new in told.values())


def test_the_only_line_that_went_is_the_only_one_that_came(tmp_path: Path) -> None:
    (found,) = compare_snapshots(report(tmp_path, (1, MIB), (2, MIB)), report(tmp_path, (1, MIB), (7, 5 * MIB)))

    assert [(row.site, row.before_bytes, row.after_bytes) for row in found.changes] == [("model.py:7", MIB, 5 * MIB)]


def test_a_snapshot_does_not_differ_from_itself(tmp_path: Path) -> None:
    one = report(tmp_path, (1, MIB), (2, MIB))

    (found,) = compare_snapshots(one, one)

    assert found.changes == ()
    assert found.unchanged_bytes == 2 * MIB
