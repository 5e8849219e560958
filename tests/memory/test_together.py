from __future__ import annotations

import pickle
from pathlib import Path

from tests.memory.program import MIB, Program, forward, training

from whystall.memory.explain import explain
from whystall.memory.read import read_snapshot
from whystall.memory.results import MemoryReport, SiteExcess
from whystall.memory.together import together
from whystall.report.memory_ranks_text import told_together

LATE_US = 5_000_000  # after what the programs take


def told(folder: Path, name: str, program: Program, holders: int = 200) -> MemoryReport:
    path = folder / name
    path.write_bytes(pickle.dumps(program.snapshot()))
    return explain(read_snapshot(path), holders)


def rank(extra_mib: int = 0, out_after_us: int | None = None) -> Program:
    """A rank that holds more of a line than the 38 MiB of training, and may run out of memory at a time."""
    program = training(3)
    start = program.events[0]["time_us"]
    if extra_mib:
        program.alloc(extra_mib * MIB, forward(77))
    if out_after_us is not None:
        program.time_us = start + LATE_US + out_after_us
        program.out_of_memory(900 * MIB, 5 * MIB, forward(55))
    return program


def test_the_rank_that_ran_out_first_by_time_is_named_and_not_the_first_file(tmp_path: Path) -> None:
    reports = [
        told(tmp_path, "rank0.pickle", rank(out_after_us=30_000)),
        told(tmp_path, "rank1.pickle", rank()),
        told(tmp_path, "rank2.pickle", rank(out_after_us=18_000)),
    ]

    joint = together(reports)

    assert joint is not None
    assert (joint.files, joint.ran_out) == (3, 2)
    assert joint.first_out is not None
    first = joint.first_out
    assert (first.file, first.next_file, first.before_next_ns) == ("rank2.pickle", "rank0.pickle", 12_000_000)
    assert told_together(joint) == (
        "rank2.pickle ran out of memory first (900 MiB asked for), 12.0 ms before rank0.pickle by the clocks of their "
        "hosts; 2 of 3 files did. All hold about the same at their peaks, at most 38.0 MiB."
    )


def test_the_fullest_rank_is_told_by_the_line_that_holds_more(tmp_path: Path) -> None:
    extras = (2, 100, 4, 6)
    joint = together([told(tmp_path, f"rank{at}.pickle", rank(extra)) for at, extra in enumerate(extras)])

    assert joint is not None
    assert (joint.fullest, joint.first_out, joint.no_first_because) == ("rank1.pickle", None, "none ran out of memory")
    # 16 MiB stay when a step is over: the others, with at most 6 more, had their peak in the backward pass.
    assert (joint.fullest_peak_bytes, joint.median_of_others_bytes) == (116 * MIB, 38 * MIB)
    assert joint.more[0] == SiteExcess("model.py:77", "forward", 100 * MIB, 0)
    assert "78.0 MiB more than the median of the others: by line 100 MiB more at model.py:77 forward" in told_together(
        joint
    )


def test_lines_that_are_left_out_count_for_the_others(tmp_path: Path) -> None:
    few = [told(tmp_path, f"rank{at}.pickle", rank(extra), holders=1) for at, extra in enumerate((0, 100))]
    joint = together(few)

    assert joint is not None
    left_out = few[0].devices[0].peak.allocated_bytes - few[0].devices[0].peak.holders[0].bytes
    assert joint.more[0].median_of_others_bytes == left_out > 0


def test_without_times_nobody_is_first(tmp_path: Path) -> None:
    programs = [rank(out_after_us=at) for at in (10, 20)]
    for event in programs[0].events:
        del event["time_us"]
    joint = together([told(tmp_path, f"rank{at}.pickle", program) for at, program in enumerate(programs)])

    assert joint is not None
    assert (joint.first_out, joint.no_first_because) == (None, "not all that ran out have times")
    assert "who did first is not known, since not all that ran out have times" in told_together(joint)


def test_one_file_says_nothing_together(tmp_path: Path) -> None:
    assert together([told(tmp_path, "rank0.pickle", rank(2))]) is None
