"""Many ranks in groups: every rank in one, hosts where the devices' numbers tell."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from whystall.report.html import render_html
from whystall.report.page import BUDGETS, page
from whystall.report.schema import Report, SourceFile
from whystall.report.sections.hosts import hosts
from whystall.report.shell import MAX_BYTES
from whystall.report.tables import Limits

ALL = Limits(rows=10_000, name=80)


def of_ranks(report: Report, numbers: list[int], *, in_depth: int = 8) -> Report:
    """The report with a device for each rank, called by these numbers."""
    devices = [
        msgspec.structs.replace(report.devices[0], rank=rank, device=number, compute_ns=rank + 1)
        for rank, number in enumerate(numbers)
    ]
    files = [
        SourceFile(
            path=f"rank{rank}.json",
            rank=rank,
            bytes=1,
            raw_bytes=1,
            events=1,
            truncated=False,
            in_depth=rank % (len(numbers) // in_depth) == 1,
        )
        for rank in range(len(numbers))
    ]
    source = msgspec.structs.replace(report.source, files=files, ranks=list(range(len(numbers))))
    return msgspec.structs.replace(report, devices=devices, source=source)


def told(report: Report) -> list[list[str]]:
    return [[cell.text for cell in row] for row in hosts(report, ALL).rows]


def test_hosts_are_told_by_the_numbers_of_their_devices(samples: dict[str, Report]) -> None:
    rows = told(of_ranks(samples["gpu"], [*range(8), *range(8), *range(4)]))
    assert [row[:3] for row in rows] == [["2", "16-19", "4"], ["1", "8-15", "8"], ["0", "0-7", "8"]]
    assert [row[-2] for row in rows] == ["rank 19", "rank 15", "rank 7"]


def test_without_numbers_there_are_blocks(samples: dict[str, Report]) -> None:
    rows = told(of_ranks(samples["gpu"], [0] * 1024))
    assert len(rows) == 32
    assert rows[0][:2] == ["992-1023", "32"]


def test_few_ranks_have_no_groups(samples: dict[str, Report]) -> None:
    assert told(of_ranks(samples["gpu"], list(range(16)))) == []


@given(numbers=st.lists(st.integers(0, 7), min_size=17, max_size=200))
def test_every_device_is_in_one_group(samples: dict[str, Report], numbers: list[int]) -> None:
    table = hosts(of_ranks(samples["gpu"], numbers), ALL)
    column = [one.label for one in table.columns].index("Devices")
    assert sum(int(row[column].value or 0) for row in table.rows) == len(numbers)


def test_the_page_has_the_ranks_that_were_looked_at_and_counts_the_others(samples: dict[str, Report]) -> None:
    report = of_ranks(samples["gpu"], [rank % 8 for rank in range(1024)])
    document = render_html(report)
    assert len(document.encode()) <= MAX_BYTES
    shown = page(report, BUDGETS[0]).shown
    assert shown >= {129, 257, 897}
    assert len(shown) <= 9
    assert "more ranks are in the overview above" in document


def test_hosts_that_a_list_of_ranks_tells_are_groups_though_their_ranks_take_turns(samples: dict[str, Report]) -> None:
    report = of_ranks(samples["gpu"], [0] * 20)
    files = [msgspec.structs.replace(file, host=file.rank % 2) for file in report.source.files]
    told_of = msgspec.structs.replace(report, source=msgspec.structs.replace(report.source, files=files))
    assert sorted(row[:3] for row in told(told_of)) == [
        ["0", "0, 2, 4, 6, 8, 10, 12, 14 and 2 more", "10"],
        ["1", "1, 3, 5, 7, 9, 11, 13, 15 and 2 more", "10"],
    ]
    strips = [page(one, BUDGETS[0]).strip for one in (report, told_of)]
    assert [strip and strip.borders for strip in strips] == [(), (50.0,)]
