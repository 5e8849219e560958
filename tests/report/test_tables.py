from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from whystall.report import tables
from whystall.report.ranks import by_rank
from whystall.report.schema import Report
from whystall.report.sections import capture, device, program, resources
from whystall.report.tables import Cell, Column, Limits

LIMITS = Limits(rows=5, name=40, full=80)


@given(st.lists(st.tuples(st.integers(0, 100), st.text(max_size=3))), st.integers(0, 20))
def test_the_largest_rows_come_first_and_ties_by_name(rows: list[tuple[int, str]], most: int) -> None:
    expected = sorted(rows, key=lambda row: (-row[0], row[1]))[:most]
    assert tables.largest(rows, Limits(rows=most, name=9), lambda row: row) == expected


def test_columns_in_which_nothing_is_known_are_left_out() -> None:
    columns = (Column("A"), Column("B"))
    made = tables.table("t", "T", "", columns, [(tables.count(1), tables.count(None))], total=3)
    assert [column.label for column in made.columns] == ["A"]
    assert made.omitted == 2


def test_a_name_says_itself_in_full_only_when_it_was_cut() -> None:
    assert tables.name("mm", LIMITS) == Cell("mm", "mm", None)
    cut = tables.name("k" * 100, LIMITS)
    assert (len(cut.text), len(cut.full or "")) == (40, 80)
    assert tables.name("", LIMITS).text == "(no name)"


def test_every_table_keeps_to_its_limits(huge_report: Report) -> None:
    rank = by_rank(huge_report)[3]
    made = [build(rank, LIMITS) for build in (
        device.kernels, device.families, program.operators, program.modules, program.phases, program.threads,
        program.calls, resources.communication, resources.waits, resources.memory,
    )]  # fmt: skip
    made += [build(rank.devices[0], LIMITS) for build in (device.steps, device.streams, capture.undecided)]
    made += [build(huge_report, LIMITS) for build in (capture.files, capture.dropped, capture.signals)]
    made.append(device.longest_events(rank.timelines[0], LIMITS))
    made.append(device.devices(huge_report.devices, LIMITS))
    for table in made:
        assert 0 < len(table.rows) <= 5
        assert all(len(row) == len(table.columns) for row in table.rows)


def test_outliers_are_never_cut_from_the_steps(samples: dict[str, Report]) -> None:
    shown = device.steps(samples["gpu"].devices[0], Limits(rows=2, name=40))
    assert [row[0].text for row in shown.rows] == ["ProfilerStep#0", "ProfilerStep#4"]
    assert shown.omitted == 4
