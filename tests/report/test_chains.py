from __future__ import annotations

from whystall.report.ranks import by_rank
from whystall.report.schema import Report
from whystall.report.sections.chains import fusible
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
