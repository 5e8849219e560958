from __future__ import annotations

from whystall.report.ranks import by_rank
from whystall.report.schema import Report
from whystall.report.sections.chains import fused, fusible, origins
from whystall.report.tables import Limits

LIMITS = Limits(rows=10, name=96)


def test_a_chain_reads_from_left_to_right_with_its_range(samples: dict[str, Report]) -> None:
    table = fusible(by_rank(samples["gpu"])[0], LIMITS)
    cells = {column.label: cell.text for column, cell in zip(table.columns, table.rows[0], strict=True)}
    assert cells["Chain"] == "pow → mean → add → rsqrt → mul"
    assert (cells["Bytes fused"], cells["Time fused"]) == ("1.00 GiB to 2.00 GiB", "4.00 ms to 8.00 ms")
    assert "30.0 ms of device time" in table.caption
    assert "90 events shorter than 10.0 µs come 8 and more in a row, with 6.00 ms between them" in table.caption


def test_without_chains_there_is_no_table(samples: dict[str, Report]) -> None:
    assert not fusible(by_rank(samples["cpu"])[0], LIMITS)


def test_compiled_kernels_show_what_they_came_from(samples: dict[str, Report]) -> None:
    table = fused(by_rank(samples["gpu"])[0], LIMITS)
    cells = {column.label: cell.text for column, cell in zip(table.columns, table.rows[0], strict=True)}
    assert (cells["Operators"], cells["Modules"], cells["Kind"]) == ("add, gelu, mul", "layers.0.mlp", "pointwise")


def test_what_has_no_origin_is_counted(samples: dict[str, Report]) -> None:
    table = origins(by_rank(samples["gpu"])[0], LIMITS)
    assert [[cell.text for cell in row][1:] for row in table.rows] == [
        ["96", "8.00 ms", "1.5 %"],
        ["5,293", "500 ms", "96.2 %"],
        ["509", "12.0 ms", "2.3 %"],
    ]
    assert table.rows[2][0].text.startswith("nothing")
