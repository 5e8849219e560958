"""What is declared of exports holds: each is found where it is said to be, offered, and described."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from whystall.report.registry import EXPORTS, REPORT_FORMATS, ReportFormat, TraceFile, TraceFolder, format_of, render
from whystall.report.schema import Report

ROOT = Path(__file__).resolve().parents[2]
OFFERED = [one for one in EXPORTS if not isinstance(one, ReportFormat) or one.exported]


@pytest.mark.parametrize("export", EXPORTS, ids=lambda export: export.name)
def test_an_export_is_where_it_is_said_to_be(export: ReportFormat | TraceFile | TraceFolder) -> None:
    assert callable(export.function)
    assert export.at.startswith(("whystall.report.", "whystall.integrations."))


def test_no_name_and_no_suffix_stands_for_two_formats() -> None:
    names = [export.name for export in EXPORTS]
    assert len(set(names)) == len(names)
    for one in REPORT_FORMATS:
        assert [format_of(f"report{suffix}") for suffix in one.suffixes] == [one.name] * len(one.suffixes)


def test_listing_the_formats_loads_none_of_them() -> None:
    heavy = "{'rich', 'jinja2', 'polars', 'msgspec', 'numpy'}"
    check = f"import sys, whystall.report.registry; print({heavy} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "set()"


def test_the_reference_names_every_format_that_the_command_line_offers() -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text()
    (synopsis,) = re.findall(r"whystall export PATH --format (\S+)", page)
    assert synopsis.split("|") == [export.name for export in OFFERED]
    table = page.partition("## export")[2].partition("\n## ")[0]
    assert all(f"`{export.name}`" in table for export in OFFERED)


def test_a_notebook_is_a_format_like_others(samples: dict[str, Report]) -> None:
    assert samples["gpu"]._repr_html_() == render(samples["gpu"], "notebook")
