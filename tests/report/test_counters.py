"""The section of device counters: what is shown first, and names of strangers in it."""

from __future__ import annotations

import msgspec
import pytest

from whystall.analysis.counters import DeviceCounter
from whystall.report.format import UNKNOWN
from whystall.report.ranks import by_rank
from whystall.report.registry import Options, render
from whystall.report.schema import Report
from whystall.report.sections.counters import counters
from whystall.report.tables import Limits

HOSTILE = "<script>alert(1)</script>\x1b[31mred\x1b]8;;http://evil.example\x07 | `x` " + "k" * 5000


def counter(name: str, unit: str | None = "%", busy: float | None = 1.0, device: int | None = 0) -> DeviceCounter:
    return DeviceCounter(
        rank=0, device=device, name=name, unit=unit, samples=3, covered_ns=9, mean=2.0, p5=0.0, p95=4.0,
        busy_mean=busy, idle_mean=0.5,
    )  # fmt: skip


def shown(report: Report, rows: list[DeviceCounter], limit: int = 9) -> list[str]:
    (rank,) = by_rank(msgspec.structs.replace(report, device_counters=rows))
    return [row[0].text for row in counters(rank, Limits(rows=limit, name=80)).rows]


def test_shares_that_were_high_while_the_device_worked_stand_first(samples: dict[str, Report]) -> None:
    rows = [
        counter("clock", None, 1.9e9), counter("idle", busy=0.0), counter("tensor", busy=30.0),
        counter("unknown", busy=None), counter("SM", busy=90.0),
    ]  # fmt: skip
    assert shown(samples["gpu"], rows) == ["SM", "tensor", "unknown", "idle", "clock"]
    assert shown(samples["gpu"], rows, limit=2) == ["SM", "tensor"]


def test_without_counters_no_format_speaks_of_them(samples: dict[str, Report]) -> None:
    for format_ in ("terminal", "markdown", "html"):
        text = render(samples["cpu"], format_, Options(verbose=True))
        assert "device counters" not in text.lower()


@pytest.mark.parametrize("format_", ["terminal", "markdown", "html"])
def test_names_and_units_out_of_a_recording_are_harmless_and_short(samples: dict[str, Report], format_: str) -> None:
    rows = [counter(HOSTILE, unit=HOSTILE)]
    plain = render(msgspec.structs.replace(samples["gpu"], device_counters=[]), format_, Options(verbose=True))
    text = render(msgspec.structs.replace(samples["gpu"], device_counters=rows), format_, Options(verbose=True))
    assert "alert" in text
    assert "\x1b" not in text
    assert "\x07" not in text
    if format_ != "terminal":  # which shows text as text
        assert "<script>alert" not in text
    assert len(text) - len(plain) < 4500, "a name of 5,000 letters is cut"


def test_a_unit_that_is_none_is_not_shown(samples: dict[str, Report]) -> None:
    rows = [counter(unit, unit) for unit in ("GB/s", "<b>", "bytes of it")]
    text = render(msgspec.structs.replace(samples["gpu"], device_counters=rows), "markdown")
    lines = {line.split("|")[1].strip(): line.split("|")[3].strip() for line in text.splitlines() if "2.000" in line}
    assert lines == {
        "<code>GB/s</code>": "2.000 GB/s",
        "<code>&lt;b&gt;</code>": "2.000 &lt;b&gt;",
        "<code>bytes of it</code>": "2.000",
    }


def test_a_counter_of_no_device_is_of_an_unknown_one(samples: dict[str, Report]) -> None:
    rows = [counter("SM"), counter("SM", busy=None, device=None)]
    text = render(msgspec.structs.replace(samples["gpu"], device_counters=rows), "terminal", Options(verbose=True))
    unknown, known = (line.split() for line in text.splitlines() if line.startswith("SM "))
    assert unknown[:4] == ["SM", UNKNOWN, "2.000", "%"]
    assert known[:4] == ["SM", "0", "2.000", "%"]
    assert (unknown.count(UNKNOWN), known.count(UNKNOWN)) == (2, 0)  # the device, and the mean while it works
