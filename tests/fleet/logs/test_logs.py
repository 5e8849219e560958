"""Readers of communication logs against figures worked out by hand from what the samples were written with."""

from __future__ import annotations

import gzip
import os
from fractions import Fraction
from math import comb
from pathlib import Path

import pytest
from tests.fleet.logs import samples

from whystall.errors import InputError
from whystall.fleet.logs import CommLog, CommRow, read_logs
from whystall.fleet.logs.lateness import more_than_chance
from whystall.report.comm_log_text import render_logs


def read(folder: Path, *texts: str, **sizes: int) -> CommLog:
    paths = []
    for place, text in enumerate(texts):
        paths.append(folder / f"{place}.log")
        paths[-1].write_text(text)
    (found,) = read_logs(paths, {kind if kind != "every" else None: size for kind, size in sizes.items()})
    return found


def by_kind(found: CommLog) -> dict[str | None, CommRow]:
    return {row.collective: row for row in found.rows}


def test_nccl_tests_table(tmp_path: Path) -> None:
    found = read(tmp_path, samples.NCCL_TESTS_TEXT)

    assert (found.format, len(found.rows), found.notes) == ("nccl-tests", 2, ())
    row = found.rows[1]
    assert (row.collective, row.ranks, row.bytes, row.time_ns) == ("all_reduce", 4, 1 << 30, 1e7)
    assert row.algorithm_bytes_per_s == pytest.approx(107.374182e9, rel=1e-6)
    assert row.bus_bytes_per_s == pytest.approx(161.061274e9, rel=1e-6)


def test_nccl_tests_table_without_a_name_is_told_by_its_ratio(tmp_path: Path) -> None:
    text = samples.NCCL_TESTS_TEXT.replace("# Collective test starting: all_reduce_perf\n", "")
    assert {row.collective for row in read(tmp_path, text).rows} == {"all_reduce"}


@pytest.mark.parametrize(
    "prefix",
    [
        "[1,0]<stdout>:",  # mpirun --tag-output
        "[1,0]<stdout>: ",
        "[prterun-node7-3141@1,0]<stdout>:",
        "Sat Nov 28 10:11:{row:02}<stdout>:",  # with times
        "[0] ",  # mpiexec -prepend-rank
        "  0: ",  # srun --label
        "[node7:{row}] ",
        "node-7: ",  # pdsh
        "[rank0]:",
    ],
)
def test_a_launchers_prefix_changes_nothing(tmp_path: Path, prefix: str) -> None:
    lines = samples.NCCL_TESTS_TEXT.splitlines()
    text = "".join(f"{prefix.format(row=row)}{line}\n" for row, line in enumerate(lines))
    before, after = "launching 4 processes\n", "[1,3]<stderr>:bye\n"

    plain, prefixed = read(tmp_path, samples.NCCL_TESTS_TEXT), read(tmp_path, before + text + after)

    assert prefixed == plain


def test_nccl_tests_table_with_iterations(tmp_path: Path) -> None:
    text = samples.NCCL_TESTS_TEXT.replace("#wrong", "#wrong i_min i_max i_p99 i_cv").replace(
        "     N/A   9999.0", "     N/A 9900 10100 10090 0.5  9999.0"
    )
    row = read(tmp_path, text).rows[1]
    assert (row.time_ns, row.printed_bus_bytes_per_s) == (1e7, 161.06e9)


def test_nccl_tests_json_has_the_slowest_process(tmp_path: Path) -> None:
    (row,) = read(tmp_path, samples.nccl_tests_json()).rows

    assert (row.collective, row.ranks, row.bytes, row.count) == ("all_gather", 4, 1 << 30, 2)
    assert row.bus_bytes_per_s == pytest.approx(107.374182e9 * 3 / 4, rel=1e-6)
    assert row.slowest_process == pytest.approx(12 / 9)


def test_nccl_tests_json_that_prints_something_else_is_told(tmp_path: Path) -> None:
    text = samples.nccl_tests_json().replace("80.531", "161.0")
    assert "1 rows print another bus bandwidth" in read(tmp_path, text).notes[0]


def test_inspector_tells_waiting_from_transfer(tmp_path: Path) -> None:
    found = read(tmp_path, *(samples.inspector_log(rank) for rank in range(4)))

    rows = by_kind(found)
    assert (rows["all_reduce"].time_ns, rows["all_reduce"].bytes, rows["all_reduce"].count) == (100e3, 1 << 20, 10)
    assert rows["all_reduce"].bus_bytes_per_s == pytest.approx((1 << 20) / 100e-6 * 1.5)
    assert rows["all_gather"].bytes == 4 << 20  # the plug-in logs the count of one rank
    assert rows["send_recv"].bus_bytes_per_s == pytest.approx(65536 / 20e-6)
    assert {one.rank: (one.wait_ns, one.last) for one in found.waits} == {
        0: (500_000, 0), 1: (500_000, 0), 2: (0, 10), 3: (500_000, 0),
    }  # fmt: skip


def test_inspector_names_who_comes_last(tmp_path: Path) -> None:
    numbers = range(12)
    lines = "\n".join(
        samples.inspector_line(rank, n, 10.0 if rank else 90.0, ranks=2) for rank in (0, 1) for n in numbers
    )
    text = render_logs([read(tmp_path, lines)])
    assert text.startswith(
        "Rank 1 of communicator 0 comes last in 12 of 12 collectives and keeps the others waiting 960 µs, "
        "beside 120 µs of transfer."
    )


def test_inspector_names_nobody_where_ranks_take_turns_or_hardly_wait(tmp_path: Path) -> None:
    both = [(rank, n) for rank in range(4) for n in range(40)]
    turns = "\n".join(samples.inspector_line(rank, n, 10.0 if n % 4 == rank else 90.0) for rank, n in both)
    hardly = "\n".join(samples.inspector_line(rank, n, 100.0 if rank else 100.5) for rank, n in both)
    for text in (turns, hardly):
        assert not any(one.stands_out for one in read(tmp_path, text).waits)


def test_inspector_tests_many_collectives_as_it_tests_few() -> None:
    assert [more_than_chance(last, 400, 4) for last in (100, 140)] == [False, True]
    assert [more_than_chance(last, 4_000, 4) for last in (1_000, 1_110)] == [False, True]


@pytest.mark.parametrize(("ranks", "decided"), [(4, 4_000), (64, 500), (1024, 500)])
def test_inspector_names_by_the_exact_tail(ranks: int, decided: int) -> None:
    share = Fraction(1, ranks)
    tail, last = Fraction(0), decided + 1
    terms = [
        comb(decided, n) * share**n * (1 - share) ** (decided - n)
        for n in range(decided // ranks, decided // ranks + 160)
    ]
    for offset in reversed(range(len(terms))):
        if tail + terms[offset] >= Fraction(1, 100) * share:
            last = decided // ranks + offset + 1
            break
        tail += terms[offset]
    assert (more_than_chance(last, decided, ranks), more_than_chance(last - 1, decided, ranks)) == (True, False)


def test_a_file_that_cannot_be_read_spoils_no_folder(tmp_path: Path) -> None:
    (tmp_path / "core.1").write_bytes(b"")
    os.truncate(tmp_path / "core.1", 5 << 30)
    (tmp_path / "inspector.log").write_text(samples.inspector_log(0), "utf-8")
    assert read_logs([tmp_path], {})


def test_inspector_without_all_ranks_tells_no_waiting(tmp_path: Path) -> None:
    found = read(tmp_path, samples.inspector_log(0), samples.inspector_log(1))

    assert found.waits == ()
    assert not any(row.without_waiting for row in found.rows)
    assert "20 collectives are not in the logs of all their ranks" in found.notes[0]


def test_ras_of_two_answers_says_who_stands_still(tmp_path: Path) -> None:
    found = read(tmp_path, samples.ras_json({0: 50, 1: 40, 2: 49}), samples.ras_json({0: 60, 1: 40, 2: 59}))

    told = {one.rank: (one.collective, one.launched, one.most_launched, one.moved) for one in found.behind}
    assert told == {1: ("all_reduce", 40, 60, False), 2: ("all_reduce", 59, 60, True)}
    assert render_logs([found]).startswith("NCCL RAS: rank 1 launched nothing more and is behind.")


def test_ras_of_one_answer_says_what_it_cannot_tell(tmp_path: Path) -> None:
    found = read(tmp_path, samples.ras_json({0: 50, 1: 40}, missing=3, dead=True))

    assert [(one.rank, one.moved) for one in found.behind] == [(1, None)]
    assert [(one.rank, one.dead) for one in found.missing] == [(3, True)]
    assert "a difference of a few is normal" in found.notes[0]


def test_ras_as_text(tmp_path: Path) -> None:
    found = read(tmp_path, samples.RAS_TEXT)

    told = {one.rank: (one.collective, one.launched, one.most_launched) for one in found.behind}
    assert told == {
        0: ("all_reduce", 6649, 6650), 2: ("all_reduce", 6649, 6650), 7: ("all_reduce", 60, 6650),
    }  # fmt: skip
    assert [(one.rank, one.dead, one.process) for one in found.missing] == [
        (None, True, 3487984), (21, False, None),
    ]  # fmt: skip


def test_ras_text_that_names_nobody_says_so(tmp_path: Path) -> None:
    text = "\n".join(line for line in samples.RAS_TEXT.splitlines() if "managed by" not in line)
    found = read(tmp_path, text)
    assert found.behind == ()
    assert found.notes[0].startswith("2 ranks that are behind are not named")


def test_deepspeed_bandwidth_of_a_tensor_parallel_group_is_a_ninth_of_what_it_prints(tmp_path: Path) -> None:
    row = by_kind(read(tmp_path, samples.deepspeed_calls(), every=samples.GROUP))["all_gather"]

    assert row.bus_bytes_per_s is not None
    assert row.printed_bus_bytes_per_s is not None
    assert row.bus_bytes_per_s / row.printed_bus_bytes_per_s == pytest.approx(1 / 9, rel=1e-6)
    assert row.bus_bytes_per_s == pytest.approx(7 * samples.SIZE / 4e-3, rel=1e-5)
    assert row.note == (
        "DeepSpeed counted with the job's 64 ranks, the group has 8; 0.1111 times the printed bus bandwidth"
    )


@pytest.mark.parametrize("old", [False, True])
def test_deepspeed_bandwidths_by_hand(tmp_path: Path, old: bool) -> None:
    rows = by_kind(read(tmp_path, samples.deepspeed_calls(old=old), every=samples.GROUP))
    per_s = samples.SIZE / 4e-3
    for kind, factor in (("reduce_scatter", 7 / 8), ("all_reduce", 14 / 8), ("all_to_all", 7 / 8), ("broadcast", 1)):
        assert rows[kind].bus_bytes_per_s == pytest.approx(per_s * factor, rel=1e-4), kind
        assert rows[kind].algorithm_bytes_per_s == pytest.approx(per_s, rel=1e-4), kind
    assert ("multiplied the full input" in str(rows["reduce_scatter"].note)) is old
    assert "twice as high" in str(rows["all_reduce"].note)


def test_deepspeed_groups_may_differ_by_kind_and_are_the_job_unless_said(tmp_path: Path) -> None:
    found = read(tmp_path, samples.deepspeed_calls(), all_gather=8)
    assert [row.ranks for row in found.rows] == [8, 64, 64, 64, 64]
    unsaid = read(tmp_path, samples.deepspeed_calls())
    assert any("say them (--group-size)" in note for note in unsaid.notes)


def test_deepspeed_summary_is_read_once(tmp_path: Path) -> None:
    (row,) = read(tmp_path, samples.deepspeed_summary(), every=8).rows
    assert (row.count, row.time_ns, row.bytes) == (10, 4e6, 8 * samples.SIZE)
    assert row.bus_bytes_per_s == pytest.approx(7 * samples.SIZE / 4e-3, rel=1e-4)


def test_deepspeed_operations_without_a_size_are_left_out(tmp_path: Path) -> None:
    text = samples.deepspeed_calls().replace("64.0 MB", "0.0 MB", 1)
    assert "all_gather" not in by_kind(read(tmp_path, text, every=8))
    with pytest.raises(InputError, match="without a row"):
        read(tmp_path, samples.deepspeed_calls().replace("64.0 MB", "0B"))


def test_a_folder_is_read_as_one(tmp_path: Path) -> None:
    for rank in range(4):
        (tmp_path / f"node-pid{rank}.log").write_text(samples.inspector_log(rank))
    (tmp_path / "README").write_text("nothing")
    (found,) = read_logs([tmp_path], {})
    assert (found.files, len(found.waits)) == (4, 4)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is none of"),
        ("hello", "is none of"),
        ("{}", "is none of"),
        (samples.nccl_tests_json()[:900], "damaged or cut off"),
        (samples.nccl_tests_json(results=[]), "no row with a time"),
        (samples.ras_json({0: 1})[:300], "cut off before the first communicator"),
        (samples.NCCL_TESTS_TEXT[:1100], "no row|is none of"),
        ("Comm. Op            Message Size        Count     Total Latency(ms)\n", "without a row"),
    ],
)
def test_what_cannot_be_read_is_told_in_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read(tmp_path, text)


def test_packed_logs_of_a_folder_are_read(tmp_path: Path) -> None:
    (tmp_path / "inspector.log.gz").write_bytes(gzip.compress(samples.inspector_log(0).encode()))
    assert read_logs([tmp_path], {})
