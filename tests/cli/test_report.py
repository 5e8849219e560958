from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from whystall.report.schema import encode

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Cli, FakeApi


def test_the_page_is_written_and_its_path_is_the_result(
    cli: Cli, api: FakeApi, trace_file: Path, tmp_path: Path
) -> None:
    outcome = cli("report", trace_file)

    assert (outcome.code, outcome.out) == (0, "report.html\n")
    assert (tmp_path / "report.html").read_text() == "<html> Nothing is slow."
    assert outcome.err.splitlines()[-1] == "next: open report.html in a browser"


def test_the_extension_picks_the_format(cli: Cli, api: FakeApi, trace_file: Path, tmp_path: Path) -> None:
    cli("report", trace_file, "-o", "report.md")

    assert (tmp_path / "report.md").read_text().startswith("<markdown>")


def test_an_existing_page_is_kept_without_force(cli: Cli, api: FakeApi, trace_file: Path, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("mine")

    assert cli("report", trace_file).code == 2
    assert (tmp_path / "report.html").read_text() == "mine"
    assert cli("report", trace_file, "-f").code == 0


def test_a_stored_report_is_rendered_without_an_analysis(cli: Cli, api: FakeApi, tmp_path: Path) -> None:
    (tmp_path / "stored.json").write_bytes(encode(api.report))

    assert cli("report", "stored.json").code == 0
    assert api.analyzed == []
    assert (tmp_path / "report.html").read_text() == "<html> Nothing is slow."


def test_a_run_folder_gives_its_stored_report(cli: Cli, api: FakeApi, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "rank0.trace.json").write_text("{}")
    (run / "report.json").write_bytes(encode(api.report))
    os.utime(run / "rank0.trace.json", ns=(0, 0))

    assert cli("report", run, "-v").code == 0
    assert api.analyzed == []


def test_a_report_older_than_a_trace_beside_it_is_not_trusted(cli: Cli, api: FakeApi, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "rank0.trace.json").write_text("{}")
    (run / "report.json").write_bytes(encode(api.report))
    os.utime(run / "report.json", ns=(0, 0))

    assert cli("report", run).code == 0
    assert len(api.analyzed) == 1


@pytest.mark.parametrize(
    "content",
    [
        b'{"schema": "whystall.report/1"}',
        b'{"schema": "whystall.report/2", "verdict": {}}',
        b'{"schema": "whystall.report/1", ',
    ],
)
def test_a_damaged_or_newer_report_ends_with_3(content: bytes, cli: Cli, api: FakeApi, tmp_path: Path) -> None:
    (tmp_path / "stored.json").write_bytes(content)

    outcome = cli("report", "stored.json")

    assert outcome.code == 3
    assert outcome.err.startswith("whystall: stored.json is no report that this whystall can read")


@pytest.mark.parametrize("format_", ["json", "markdown", "html"])
def test_export_prints_a_report_format(format_: str, cli: Cli, api: FakeApi, trace_file: Path) -> None:
    assert cli("export", trace_file, "--format", format_).out == f"<{format_}> Nothing is slow.\n"


def test_export_writes_a_report_format(cli: Cli, api: FakeApi, trace_file: Path, tmp_path: Path) -> None:
    outcome = cli("export", trace_file, "--format", "json", "-o", "any.name")

    assert outcome.out == "any.name\n"
    assert (tmp_path / "any.name").read_text() == "<json> Nothing is slow."
    assert cli("export", trace_file, "--format", "json", "-o", "any.name").code == 2


@pytest.mark.parametrize("format_", ["csv", "parquet"])
def test_tables_need_a_folder(format_: str, cli: Cli, trace_file: Path) -> None:
    assert "name a folder with -o" in cli("export", trace_file, "--format", format_).err
    assert "is a file" in cli("export", trace_file, "--format", format_, "-o", trace_file).err


@pytest.mark.parametrize("format_", ["csv", "perfetto"])
def test_a_trace_is_exported_alone(format_: str, cli: Cli, trace_file: Path) -> None:
    outcome = cli("export", trace_file, trace_file, "--format", format_, "-o", "out")

    assert outcome.code == 2
    assert "one trace at a time: 2 were given" in outcome.err
