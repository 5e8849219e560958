from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import msgspec
import pytest

import whystall
from whystall.report.redaction import redacted
from whystall.report.schema import decode, encode
from whystall.trace.fingerprint import fingerprint

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


@pytest.fixture
def run(tmp_path: Path, api: FakeApi) -> Path:
    """A folder with a trace, in a folder below it another one, samples, and the report on them."""
    folder = tmp_path / "run"
    (folder / "below").mkdir(parents=True)
    for name in ("rank0.trace.json", "below/rank1.trace.json", "rank0.samples.jsonl", "run.json"):
        (folder / name).write_text("{}")
    held = fingerprint(folder)
    assert held is not None
    report = msgspec.structs.replace(api.report, source=msgspec.structs.replace(api.report.source, inputs=held))
    (folder / "report.json").write_bytes(encode(report))
    return folder


def test_a_run_folder_gives_its_stored_report(cli: Cli, api: FakeApi, run: Path) -> None:
    os.utime(run / "report.json", ns=(0, 0))  # as `cp` without `-p` leaves it

    assert cli("report", run, "-v").code == 0
    assert api.analyzed == []


@pytest.mark.parametrize("verb", ["report", "export"])
@pytest.mark.parametrize(
    "changed",
    [
        "rank0.trace.json",
        "below/rank1.trace.json",
        "new.json.gz",
        "below/new.json",
        "rank0.samples.jsonl",
        "run.json",
        "rank0.run.json",
        "experiments.json",
        "ranks.json",
        "rank0.flight.pickle",
    ],
)
def test_a_stored_report_of_other_content_is_made_again(
    cli: Cli, api: FakeApi, run: Path, changed: str, verb: str
) -> None:
    (run / changed).write_text("[]")
    os.utime(run / changed, ns=(0, 0))  # as `cp -p` and `rsync -t` leave it

    outcome = cli(verb, run, *(["--format", "json"] if verb == "export" else []))

    assert outcome.code == 0
    assert len(api.analyzed) == 1
    assert "not of what" in outcome.err


def test_a_file_less_is_other_content(cli: Cli, api: FakeApi, run: Path) -> None:
    (run / "below" / "rank1.trace.json").unlink()

    assert cli("report", run).code == 0
    assert len(api.analyzed) == 1


def test_two_files_that_changed_places_are_other_content(cli: Cli, api: FakeApi, run: Path) -> None:
    (run / "rank0.trace.json").write_text("[1]")
    first = fingerprint(run)
    (run / "rank0.trace.json").write_text("{}")
    (run / "below" / "rank1.trace.json").write_text("[1]")

    assert fingerprint(run) not in (first, None)


def test_what_is_no_input_changes_nothing(cli: Cli, api: FakeApi, run: Path) -> None:
    (run / "report.html").write_text("page")
    (run / "model.pt").write_text("weights")

    assert cli("report", run).code == 0
    assert api.analyzed == []


def test_a_report_without_its_recordings_is_shown(cli: Cli, api: FakeApi, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "report.json").write_bytes(encode(api.report))

    assert cli("report", tmp_path / "kept").code == 0
    assert api.analyzed == []


def test_a_report_that_does_not_say_of_what_it_is_is_made_again(cli: Cli, api: FakeApi, run: Path) -> None:
    (run / "report.json").write_bytes(encode(api.report))

    assert cli("report", run).code == 0
    assert len(api.analyzed) == 1


@pytest.mark.parametrize("words", [("--tokens-per-step", "5"), ("--no-calibration",), ("--precision", "bf16")])
def test_a_report_that_was_made_otherwise_is_not_what_was_asked_for(
    cli: Cli, api: FakeApi, run: Path, words: tuple[str, ...]
) -> None:
    outcome = cli("report", run, *words)

    assert outcome.code == 0
    assert len(api.analyzed) == 1
    assert words[0] in outcome.err


def test_a_report_that_is_stored_with_its_traces_says_of_what_it_is(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(whystall.demo_recording(), folder / "rank0.trace.json.gz")

    assert cli("analyze", folder, "--no-cache", "-o", folder).code == 0
    report = decode((folder / "report.json").read_bytes())
    assert report.source.inputs == fingerprint(folder) is not None
    copy = shutil.copytree(folder, tmp_path / "copy")
    os.utime(copy / "rank0.trace.json.gz", ns=(0, 0))
    assert fingerprint(copy) == report.source.inputs
    assert redacted(report).source.inputs is None


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
