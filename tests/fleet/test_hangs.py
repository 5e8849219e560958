"""Hangs whose truth is known by construction."""

from __future__ import annotations

from pathlib import Path

import pytest

from whystall.fleet import Hang, Hangs, Kind, Wait, find_hangs, read_dumps
from whystall.report.hang_text import render_hangs, summarize

from .recorder import Job

PAIR = ("1", "tensor")


def found(job: Job, folder: Path, *, without: tuple[int, ...] = (), form: str = "pickle") -> Hangs:
    return find_hangs(*read_dumps([job.write(folder, without=without, form=form)]))


def only(job: Job, folder: Path, **options: str) -> Hang:
    (hang,) = found(job, folder, **options).hangs  # type: ignore[arg-type]
    return hang


@pytest.mark.parametrize("form", ["pickle", "json"])
@pytest.mark.parametrize("version", ["2.4", "2.10", "3.0"])
def test_a_rank_that_never_came(tmp_path: Path, form: str, version: str) -> None:
    job = Job(4, version=version).call("all_reduce").call("all_gather", ranks=(0, 1, 3), line=20, state="started")

    hang = only(job, tmp_path, form=form)

    assert (hang.kind, hang.ranks, hang.waiting) == (Kind.MISSING_ENTER, (2,), (0, 1, 3))
    assert (hang.sequence, hang.operation, hang.shift) == (2, "all_gather", None)
    assert [call.operation for call in hang.others] == ["all_reduce"]
    assert (hang.call is not None and hang.call.place is not None) == (form == "pickle")


def test_fields_of_old_versions_are_enough(tmp_path: Path) -> None:
    job = Job(3, version="2.4").call("all_reduce").call("all_gather", ranks=(0, 1), state="started")
    for entries in job.entries.values():
        for one in entries:
            for field in ("op_id", "timeout_ms", "retired", "input_dtypes", "output_dtypes", "frames"):
                del one[field]

    assert only(job, tmp_path).ranks == (2,)


def test_a_healthy_job_names_nobody(tmp_path: Path) -> None:
    job = Job(4).call("all_reduce").call("all_gather", line=20)

    assert found(job, tmp_path).hangs == ()


def test_dumps_of_different_moments_are_no_hang(tmp_path: Path) -> None:
    job = Job(3).call("all_reduce").call("all_reduce", ranks=(0, 1))  # ended there: rank 2 was dumped earlier

    assert found(job, tmp_path).hangs == ()


@pytest.mark.parametrize(
    ("other", "differs"),
    [({"operation": "broadcast"}, "operation"), ({"size": (9,)}, "size"), ({"dtype": "Half"}, "type")],
)
def test_a_rank_that_asks_for_something_else(tmp_path: Path, other: dict[str, object], differs: str) -> None:
    usual = {"operation": "all_reduce", "line": 30, "state": "started"}
    job = Job(3).call("all_gather").call(ranks=(0, 2), **usual).call(ranks=(1,), **(usual | other))  # type: ignore[arg-type]

    hang = only(job, tmp_path)

    assert (hang.kind, hang.ranks, hang.sequence, hang.differs) == (Kind.MISMATCH, (1,), 2, differs)
    assert hang.could_be is None


def test_shapes_of_as_many_elements_are_the_same(tmp_path: Path) -> None:
    job = Job(2).call("all_reduce", ranks=(0,), size=(4, 4)).call("all_reduce", ranks=(1,), size=(16,))

    assert found(job, tmp_path).hangs == ()


def test_uneven_exchanges_are_no_mismatch(tmp_path: Path) -> None:
    job = Job(2).call("all_to_all", ranks=(0,), size=(5,)).call("all_to_all", ranks=(1,), size=(11,))

    assert found(job, tmp_path).hangs == ()


def test_of_two_ranks_that_differ_neither_is_blamed_for_sure(tmp_path: Path) -> None:
    job = Job(2).call("all_reduce", ranks=(0,), state="started").call("broadcast", ranks=(1,), state="started")

    hang = only(job, tmp_path)

    assert hang.kind is Kind.MISMATCH
    assert "equally many ranks" in (hang.could_be or "")


def test_a_mismatch_that_ended_does_not_hide_the_hang(tmp_path: Path) -> None:
    job = Job(3).call("all_reduce", ranks=(0, 2)).call("all_reduce", ranks=(1,), size=(9,))

    odd = only(job, tmp_path)
    hang = only(job.call("all_gather", ranks=(0, 1), state="started"), tmp_path)

    assert (odd.kind, odd.ranks, odd.sequence) == (Kind.MISMATCH, (1,), 1)
    assert "ended on all ranks" in (odd.could_be or "")
    assert (hang.kind, hang.ranks, hang.sequence) == (Kind.MISSING_ENTER, (2,), 2)


def test_a_call_left_out_is_told_from_what_follows(tmp_path: Path) -> None:
    job = Job(3)
    for _ in range(3):
        job.call("all_reduce", line=10).call("all_gather", line=20)
    job.call("all_reduce", line=10, ranks=(0, 2), state="started").call(
        "all_gather", line=20, ranks=(1,), state="started"
    )

    assert only(job, tmp_path).shift is Wait.LEFT_OUT


def test_a_call_too_many(tmp_path: Path) -> None:
    job = Job(3).call("barrier", ranks=(1,), line=5).call("all_reduce", line=10, state="started")

    hang = only(job, tmp_path)

    assert (hang.kind, hang.ranks, hang.shift, hang.sequence) == (Kind.MISMATCH, (1,), Wait.EXTRA, 1)


def test_a_like_call_left_out_is_found_by_its_line(tmp_path: Path) -> None:
    job = Job(3)
    for line in (10, 11, 12, 13, 14):
        job.call("all_reduce", line=line, ranks=(0, 2), state="started" if line == 14 else "completed")
        job.call("all_reduce", line=line, ranks=() if line == 12 else (1,))

    hang = only(job, tmp_path)

    assert (hang.kind, hang.ranks, hang.shift, hang.sequence) == (Kind.MISSING_ENTER, (1,), Wait.LEFT_OUT, 3)
    assert hang.call is not None
    assert hang.call.place is not None
    assert hang.call.place.line == 12


def test_a_rank_that_comes_late_by_its_own_habits(tmp_path: Path) -> None:
    job = Job(3)
    for number in range(5):  # rank 2's clock is 40 s ahead
        for rank, offset in ((0, 0), (1, 3), (2, 40_000)):
            late = 7_000 if (number, rank) == (4, 1) else 0
            state = "started" if number == 4 else "completed"
            job.call("all_reduce", ranks=(rank,), state=state, at_ms=number * 100 + offset + late)

    hang = only(job, tmp_path)

    assert (hang.kind, hang.ranks, hang.sequence) == (Kind.LATE_ENTER, (1,), 5)
    assert hang.late_ns == 7_000_000_000


def test_a_rank_whose_device_has_not_begun(tmp_path: Path) -> None:
    job = Job(3).call("all_reduce")
    job.call("all_reduce", ranks=(0, 1), state="started", at_ms=20).call(
        "all_reduce", ranks=(2,), state="scheduled", at_ms=20
    )

    hang = only(job, tmp_path)

    assert (hang.kind, hang.ranks) == (Kind.LATE_ENTER, (2,))
    assert "devices" in (hang.could_be or "")


def test_a_rank_that_did_not_come_out(tmp_path: Path) -> None:
    job = Job(3).call("all_reduce", ranks=(0, 1)).call("all_reduce", ranks=(2,), state="started")

    hang = only(job, tmp_path)

    assert (hang.kind, hang.ranks) == (Kind.MISSING_EXIT, (2,))


def test_where_all_entered_alike_nobody_is_blamed(tmp_path: Path) -> None:
    hang = only(Job(3).call("all_reduce", state="started"), tmp_path)

    assert (hang.kind, hang.ranks, hang.waiting) == (Kind.MISSING_EXIT, (), (0, 1, 2))
    assert "network" in (hang.could_be or "")


def test_a_rank_without_a_dump_is_named_and_not_blamed(tmp_path: Path) -> None:
    job = Job(4).call("all_reduce").call("all_reduce", ranks=(0, 1, 2), state="started")

    answer = found(job, tmp_path, without=(3,))

    assert answer.missing_ranks == (3,)
    assert (answer.hangs[0].kind, answer.hangs[0].ranks, answer.hangs[0].undumped) == (Kind.UNKNOWN, (), (3,))


def test_recorders_that_were_off_are_told_with_what_turns_them_on(tmp_path: Path) -> None:
    Job(2).write(tmp_path)
    assert find_hangs(*read_dumps([tmp_path])).blank == ()  # on, and nothing was asked for yet: they know their group
    off = Job(2)
    off.groups.clear()
    answer = find_hangs(*read_dumps([off.write(tmp_path)]))
    assert answer.blank == answer.ranks == (0, 1)
    assert summarize(answer).startswith(
        "PyTorch's flight recorder was off and held no operation: TORCH_FR_BUFFER_SIZE="
    )
    assert summarize(answer) in render_hangs(answer)


def test_one_recorder_that_was_off_is_named_and_its_rank_not_blamed(tmp_path: Path) -> None:
    Job(3).call("all_reduce").call("all_reduce", ranks=(0, 1), state="started").write(tmp_path, without=(2,))
    off = Job(3)
    off.groups.clear()
    answer = find_hangs(*read_dumps([off.write(tmp_path, without=(0, 1))]))
    assert (answer.hangs[0].kind, answer.hangs[0].ranks, answer.blank) == (Kind.UNKNOWN, (), (2,))
    assert "PyTorch's flight recorder of rank 2 was off" in render_hangs(answer)


def test_rings_that_begin_at_different_numbers(tmp_path: Path) -> None:
    job = Job(3)
    for line in range(10, 20):
        job.call("all_reduce", line=line)
    job.call("all_gather", ranks=(0, 1), state="started")
    job.entries[0] = job.entries[0][-3:]
    job.entries[1] = job.entries[1][-8:]
    job.entries[2] = job.entries[2][-6:]

    hang = only(job, tmp_path)

    assert (hang.kind, hang.ranks, hang.sequence) == (Kind.MISSING_ENTER, (2,), 11)


def test_what_the_ring_has_dropped_blames_nobody(tmp_path: Path) -> None:
    job = Job(2).call("all_reduce", ranks=(0,), state="started")
    for _ in range(4):
        job.call("all_gather", ranks=(1,))
    job.entries[1] = job.entries[1][2:]  # whether rank 1 was in the first one is no longer known

    hang = only(job, tmp_path)

    assert (hang.kind, hang.ranks) == (Kind.UNKNOWN, ())


def test_what_follows_from_another_groups_hang_is_said(tmp_path: Path) -> None:
    job = Job(4).group(PAIR, (0, 1)).call("all_reduce")
    job.call("all_gather", ranks=(0,), group=PAIR, state="started")  # rank 0 waits for rank 1
    job.call("all_reduce", ranks=(2, 3), line=30, state="started")  # ... and these for both

    hangs = found(job, tmp_path).hangs

    assert [(one.description, one.ranks, one.because) for one in hangs] == [
        ("tensor", (1,), None),
        ("default_pg", (0, 1), 0),
    ]


def test_groups_that_are_entered_in_another_order(tmp_path: Path) -> None:
    job = Job(2).group(PAIR, (0, 1))
    job.call("all_reduce", ranks=(0,), state="started").call("all_reduce", ranks=(1,), group=PAIR, state="started")

    assert {one.kind for one in found(job, tmp_path).hangs} == {Kind.DIFFERENT_ORDER}


def test_coalesced_operations_share_a_number(tmp_path: Path) -> None:
    job = Job(3).call("all_reduce", count=3).call("all_gather", ranks=(0, 1), count=2, state="started")

    hang = only(job, tmp_path)

    assert (hang.ranks, hang.sequence) == ((2,), 2)


def test_groups_with_numbers_that_count_something_else_go_by_order(tmp_path: Path) -> None:
    job = Job(3, library="gloo").call("all_reduce").call("barrier").call("all_gather", ranks=(0, 2), state="scheduled")
    for one in job.entries[0][1:]:
        one["collective_seq_id"] += 5  # sends that gloo counts and does not record

    hang = only(job, tmp_path)

    assert (hang.ranks, hang.sequence, hang.by_order) == ((1,), 3, True)


def test_without_the_first_ones_such_groups_are_not_compared(tmp_path: Path) -> None:
    job = Job(2, library="gloo").call("all_reduce").call("barrier").call("all_gather", ranks=(0,), state="scheduled")
    for one in job.entries[0][1:]:
        one["collective_seq_id"] += 5
    del job.entries[1][0]

    answer = found(job, tmp_path)

    assert answer.hangs == ()
    assert any("is not compared" in note for note in answer.notes)


@pytest.mark.parametrize("answered", [True, False])
def test_a_receive_without_its_send(tmp_path: Path, answered: bool) -> None:
    job = Job(2).call("recv 0<-1", ranks=(0,), p2p=True, state="started")
    if answered:
        job.call("send 1->0", ranks=(1,), p2p=True, state="started")
    else:
        job.call("send 1->0", ranks=(1,), p2p=True)

    hang = only(job, tmp_path)

    assert hang.kind is (Kind.MISSING_EXIT if answered else Kind.MISSING_ENTER)
    assert hang.ranks == (() if answered else (1,))


def test_the_order_of_files_changes_nothing(tmp_path: Path) -> None:
    job = Job(4).call("all_reduce").call("all_gather", ranks=(0, 1, 3), state="started")
    files = sorted(job.write(tmp_path).iterdir())

    assert find_hangs(*read_dumps(files)) == find_hangs(*read_dumps(files[::-1]))
