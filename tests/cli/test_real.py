"""The whole way, without fakes, on the recording that ships with whystall."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import jsonschema
import polars as pl
import pytest

import whystall
from whystall.report.schema import json_schema

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Cli


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(whystall.demo_recording().read_bytes())
    return path


def test_analyze_prints_the_verdict_first(cli: Cli, recording: Path) -> None:
    outcome = cli("analyze", recording)

    report = whystall.analyze(recording, cache=False)
    assert outcome.code == 0
    assert " ".join(report.verdict.summary.split()) in " ".join(outcome.out.split())
    assert "\x1b" not in outcome.out


def test_json_follows_its_schema_and_is_the_same_each_time(cli: Cli, recording: Path) -> None:
    first = cli("analyze", recording, "--json", "--no-cache").out
    second = cli("analyze", recording, "--json").out

    jsonschema.validate(json.loads(first), json_schema())
    assert first == second


def test_the_demo_explains_its_recording(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("demo", "-o", "page.html", "--no-open")

    assert outcome.code == 0
    assert "<html" in (tmp_path / "page.html").read_text()


def test_a_stored_report_renders_as_the_trace_does(cli: Cli, recording: Path, tmp_path: Path) -> None:
    cli("analyze", recording, "-q", "-o", "report.json", "-o", "direct.html")
    cli("report", "report.json", "-o", "stored.html")

    assert (tmp_path / "stored.html").read_text() == (tmp_path / "direct.html").read_text()


def test_tables_hold_every_row(cli: Cli, recording: Path, tmp_path: Path) -> None:
    assert cli("export", recording, "--format", "parquet", "-o", "tables").code == 0
    assert cli("export", recording, "--format", "csv", "-o", "tables").code == 0

    operators = whystall.load(recording, cache=False).operators
    assert len(pl.read_parquet(tmp_path / "tables" / "operators.parquet")) == len(operators)
    assert (tmp_path / "tables" / "operators.csv").read_text().startswith("row,ts_ns,duration_ns,name,")


def test_tables_are_not_overwritten_unasked(cli: Cli, recording: Path) -> None:
    cli("export", recording, "--format", "csv", "-o", "tables")

    assert cli("export", recording, "--format", "csv", "-o", "tables").code == 2
    assert cli("export", recording, "--format", "csv", "-o", "tables", "-f").code == 0


def test_a_timeline_can_be_read_back_with_the_same_times(cli: Cli, recording: Path, tmp_path: Path) -> None:
    assert cli("export", recording, "--format", "perfetto", "-o", "timeline.json.gz").code == 0

    before, after = whystall.load(recording, cache=False), whystall.load(tmp_path / "timeline.json.gz", cache=False)
    for table in ("operators", "python_functions", "annotations"):
        columns = ["ts_ns", "duration_ns"]
        ours, theirs = getattr(before, table).select(columns), getattr(after, table).select(columns)
        assert ours.sort(columns).equals(theirs.sort(columns))


def test_exports_carry_no_metadata(cli: Cli, tmp_path: Path) -> None:
    secret = "AWS_SECRET_ACCESS_KEY"  # noqa: S105 - the name of a secret, not one
    with gzip.open(tmp_path / "leaky.json.gz", "wt") as stream:
        trace = json.loads(gzip.decompress(whystall.demo_recording().read_bytes()))
        json.dump({"environment": {secret: secret}, "host_name": secret, "cmdline": [secret]} | trace, stream)

    cli("analyze", "leaky.json.gz", "-o", "out/")
    cli("export", "leaky.json.gz", "--format", "perfetto", "-o", "timeline.json")
    cli("export", "leaky.json.gz", "--format", "csv", "-o", "tables")

    files_written = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "leaky.json.gz"]
    assert len(files_written) > 10
    assert [path.name for path in files_written if secret.encode() in path.read_bytes()] == []
