from __future__ import annotations

import pytest

from whystall.report.fitting import GAP, Fitted, fitted
from whystall.report.registry import Options
from whystall.report.schema import Report
from whystall.report.tables import Cell, Column, Kind, Table
from whystall.report.terminal import render_terminal

KERNEL = "void at::native::vectorized_elementwise_kernel<4, at::native::{}<float>, std::array<char*, 2ul> >(int)"


def table(*columns: Column, rows: list[list[str]]) -> Table:
    cells = tuple(tuple(map(Cell, row)) for row in rows)
    return Table("t", "T", "", columns, cells)


def kernels(names: list[str]) -> Table:
    return table(
        Column("Name", "name"),
        Column("Class", "text", priority=5),
        Column("Count"),
        Column("Total", priority=1),
        Column("Hidden share", priority=2),
        rows=[[name, "compute", "1,234", "12.3 ms", "12.3 %"] for name in names],
    )


def labels(fit: Fitted) -> list[str]:
    return [column.label for column in fit.table.columns]


def test_a_table_with_room_is_left_alone() -> None:
    whole = kernels(["aten::mm"])
    assert fitted(whole, 100) == Fitted(whole, (8, 7, 5, 7, 12), ())


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (66, ["Name", "Class", "Count", "Total", "Hidden share"]),
        (55, ["Name", "Count", "Total", "Hidden share"]),
        (46, ["Name", "Total", "Hidden share"]),
        (34, ["Name", "Total"]),
        (20, ["Name"]),
    ],
)
def test_the_columns_that_matter_least_go_first(width: int, shown: list[str]) -> None:
    fit = fitted(kernels(["aten::" + "x" * 60]), width)
    assert labels(fit) == shown
    assert sorted([*shown, *fit.left_out]) == sorted(["Name", "Class", "Count", "Total", "Hidden share"])
    assert fit.widths[0] >= min(width, 24)
    assert sum(fit.widths) + GAP * (len(shown) - 1) <= width
    assert all(len(cell.text) <= room for cell, room in zip(fit.table.rows[0], fit.widths, strict=True))


def test_a_heading_breaks_before_a_column_goes() -> None:
    assert fitted(kernels(["aten::" + "x" * 60]), 57).widths[-1] == len("Hidden")


def test_a_cut_name_shows_where_it_belongs_and_what_it_is() -> None:
    path = "model.decoder.layers.11.mlp.down_proj"
    (row,) = fitted(kernels([path]), 40).table.rows
    assert row[0].text.startswith("model.d")
    assert row[0].text.endswith("mlp.down_proj")


def test_kernels_that_differ_in_the_middle_can_be_told_apart() -> None:
    fit = fitted(kernels([KERNEL.format("GeluFunctor"), KERNEL.format("FillFunctor")]), 50)
    shown = [row[0].text for row in fit.table.rows]
    assert all(name.startswith("at::n") for name in shown)
    assert "GeluFunctor" in shown[0]
    assert "FillFunctor" in shown[1]


@pytest.mark.parametrize(("priority", "lines"), [(1, 3), (2, 1)])
def test_only_a_sentence_that_matters_most_is_broken(priority: int, lines: int) -> None:
    told = table(Column("Name", "name"), Column("Tells", "prose", priority=priority), rows=[["gc", "words " * 300]])
    fit = fitted(told, 60)
    text = fit.table.rows[0][1].text
    assert (lines - 1) * fit.widths[1] < len(text) <= lines * fit.widths[1]


@pytest.mark.parametrize("kind", ["name", "text", "prose", "number", "mark"])
def test_a_table_of_one_column_fits_any_line(kind: Kind) -> None:
    fit = fitted(table(Column("Heading of many words", kind), rows=[["\N{CJK UNIFIED IDEOGRAPH-6F22}" * 90]]), 40)
    assert fit.widths == (40,)


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_each_row_of_the_whole_report_is_one_line_and_says_its_name(samples: dict[str, Report], width: int) -> None:
    text = render_terminal(samples["gpu"], Options(width=width, verbose=True))
    for heading, names in (
        ("KERNELS", [kernel.name.removeprefix("void ") for kernel in samples["gpu"].kernels]),
        ("OPERATORS", [operator.name for operator in samples["gpu"].operators]),
        ("MODULES", [module.path or "(root)" for module in samples["gpu"].modules]),
    ):
        lines = [line for line in text.split(f"\n{heading}\n")[1].split("\n\n")[0].splitlines() if line[0] not in " …"]
        assert len(lines) == len(names) + 1
        assert {line[:5] for line in lines[1:]} == {name[:5] for name in names}


def test_columns_without_room_are_named_and_where_to_find_them(samples: dict[str, Report]) -> None:
    narrow, wide = (render_terminal(samples["gpu"], Options(width=width, verbose=True)) for width in (80, 400))
    assert "… more columns: " in narrow
    assert "More columns than fit here are in a wider terminal" in narrow
    assert "ore columns" not in wide
