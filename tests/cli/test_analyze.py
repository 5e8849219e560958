from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.fleet.logs.samples import NCCL_TESTS_TEXT

if TYPE_CHECKING:
    from .conftest import Cli, FakeApi


def test_the_result_goes_to_stdout_and_the_next_command_to_stderr(cli: Cli, api: FakeApi, trace_file: Path) -> None:
    outcome = cli("analyze", trace_file)

    assert outcome.code == 0
    assert outcome.out == "<terminal> Nothing is slow.\n"
    given = f"whystall analyze -v {trace_file} (all of it), or whystall report {trace_file} -o report.html (the page)"
    assert outcome.err.splitlines()[-1] == f"next: {given}"


def test_quiet_leaves_stderr_empty(cli: Cli, api: FakeApi, trace_file: Path) -> None:
    assert cli("analyze", trace_file, "-q", "-o", "report.html").err == ""


@pytest.mark.parametrize(("flag", "format_"), [("--json", "json"), ("--markdown", "markdown")])
def test_a_flag_picks_the_format_of_stdout(flag: str, format_: str, cli: Cli, api: FakeApi, trace_file: Path) -> None:
    assert cli("analyze", trace_file, flag).out == f"<{format_}> Nothing is slow.\n"


def test_json_and_markdown_together_make_no_sense(cli: Cli, api: FakeApi, trace_file: Path) -> None:
    assert cli("analyze", trace_file, "--json", "--markdown").code == 2


def test_all_paths_and_options_reach_the_analysis(cli: Cli, api: FakeApi) -> None:
    cli("analyze", "a.json", "b/", "c*.json", "--no-cache", "--kernel-classes", "mine.toml")

    ((paths, options),) = api.analyzed
    assert paths == ["a.json", "b/", "c*.json"]
    assert options["cache"] is False
    assert options["kernel_classes"] == "mine.toml"


@pytest.mark.parametrize(
    ("name", "format_"),
    [("r.html", "html"), ("r.json", "json"), ("r.md", "markdown"), ("r.txt", "terminal"), ("R.HTML", "html")],
)
def test_the_extension_picks_the_format_of_a_file(
    name: str, format_: str, cli: Cli, api: FakeApi, trace_file: Path, tmp_path: Path
) -> None:
    outcome = cli("analyze", trace_file, "-o", name)

    assert outcome.code == 0
    assert (tmp_path / name).read_text() == f"<{format_}> Nothing is slow."
    assert outcome.out == "<terminal> Nothing is slow.\n"


def test_several_outputs_come_from_one_analysis(cli: Cli, api: FakeApi, trace_file: Path, tmp_path: Path) -> None:
    cli("analyze", trace_file, "-o", "r.html", "-o", "r.json")

    assert len(api.analyzed) == 1
    assert {path.name for path in tmp_path.glob("r.*")} == {"r.html", "r.json"}


def test_a_folder_gets_the_page_the_json_and_the_markdown(
    cli: Cli, api: FakeApi, trace_file: Path, tmp_path: Path
) -> None:
    outcome = cli("analyze", trace_file, "-o", "out/")

    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.html", "report.json", "report.md"}
    assert outcome.err.splitlines()[-1] == "next: open out/report.html in a browser"


def test_an_unknown_extension_is_refused_before_the_analysis(cli: Cli, api: FakeApi, trace_file: Path) -> None:
    outcome = cli("analyze", trace_file, "-o", "report.pdf")

    assert outcome.code == 2
    assert "end it in one of .txt, .json, .md, .html" in outcome.err
    assert api.analyzed == []


def test_an_existing_file_is_kept_without_force(cli: Cli, api: FakeApi, trace_file: Path, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("mine")

    outcome = cli("analyze", trace_file, "-o", "report.html")

    assert outcome.code == 2
    assert "report.html exists: add --force" in outcome.err
    assert (tmp_path / "report.html").read_text() == "mine"
    assert api.analyzed == []

    assert cli("analyze", trace_file, "-o", "report.html", "--force").code == 0
    assert (tmp_path / "report.html").read_text() != "mine"


def test_a_missing_folder_is_refused_before_the_analysis(cli: Cli, api: FakeApi, trace_file: Path) -> None:
    outcome = cli("analyze", trace_file, "-o", "nowhere/report.html")

    assert outcome.code == 2
    assert "the folder nowhere does not exist" in outcome.err
    assert api.analyzed == []


def test_a_full_disk_is_one_sentence_and_leaves_no_partial_file(
    cli: Cli, api: FakeApi, trace_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", full)

    outcome = cli("analyze", trace_file, "-q", "-o", "report.html")

    assert outcome.code == 2
    assert outcome.err == "whystall: cannot write report.html: No space left on device\n"
    assert list(tmp_path.iterdir()) == [trace_file]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "colour"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ],
)
def test_colour_is_for_terminals_that_want_it(
    variables: dict[str, str], colour: bool, cli: Cli, api: FakeApi, trace_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", Terminal())

    cli("analyze", trace_file)

    assert api.rendered == [("terminal", {"width": 80, "colour": colour, "verbose": False})]


def test_a_pipe_gets_plain_text(cli: Cli, api: FakeApi, trace_file: Path) -> None:
    cli("analyze", trace_file)

    assert api.rendered == [("terminal", {"width": 100, "colour": False, "verbose": False})]


def test_a_step_s_work_is_handed_on(cli: Cli, api: FakeApi, trace_file: Path) -> None:
    outcome = cli(
        "analyze", trace_file, "--tokens-per-step", "6144", "--throughput-reference", "3300", "--job-devices", "4"
    )
    assert outcome.code == 0
    given = api.analyzed[0][1]["workload"]
    assert (given.tokens_per_step, given.devices) == (6144.0, 4)
    assert (given.reference.per_device_per_s, given.reference.unit) == (3300.0, "tokens")


def test_a_published_reference_is_asked_for_by_name(cli: Cli, api: FakeApi, trace_file: Path) -> None:
    cli("analyze", trace_file, "--samples-per-step", "80", "--throughput-reference", "bert-large-a100")
    assert api.analyzed[0][1]["workload"].reference.per_device_per_s == 433.06


def test_nothing_said_of_a_step_is_no_workload(cli: Cli, api: FakeApi, trace_file: Path) -> None:
    cli("analyze", trace_file)
    assert api.analyzed[0][1]["workload"] is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--tokens-per-step", "0"), "--tokens-per-step wants a number above 0"),
        (("--tokens-per-step", "many"), "--tokens-per-step wants a number above 0"),
        (("--tokens-per-step", "1", "--throughput-reference", "gpt-9"), "one of bert-large-a100"),
        (("--throughput-reference", "3300"), "needs --tokens-per-step or --samples-per-step"),
    ],
)
def test_what_is_no_amount_of_work(
    cli: Cli, api: FakeApi, trace_file: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    outcome = cli("analyze", trace_file, *arguments)
    assert outcome.code == 2
    assert sentence in outcome.err


@pytest.mark.parametrize("prefix", ["", "[1,0]<stdout>:"])
def test_a_log_of_communication_is_told_the_verb_that_reads_it(cli: Cli, tmp_path: Path, prefix: str) -> None:
    log = tmp_path / "nccl.log"
    log.write_text("".join(f"{prefix}{line}\n" for line in NCCL_TESTS_TEXT.splitlines()))

    outcome = cli("analyze", log)

    assert outcome.code == 3
    assert f"nccl.log is a log of nccl-tests, no trace: whystall ranks {log}" in outcome.err
    assert cli("ranks", log).code == 0
