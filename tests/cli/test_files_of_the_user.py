"""What a verb writes: nothing of the user's is lost, and nothing is replaced but files."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import whystall
from whystall.trace.model import Trace

if TYPE_CHECKING:
    from .conftest import Cli, FakeApi

RUN = '{"schema": "whystall.run/1", "exit_code": 0}'
SAMPLES = '{"schema":"whystall.samples/1","rank":0,"columns":["step","duration_us","flags"]}\n[1,500,0]\n[2,500,0]\n'


@pytest.fixture
def ended_run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text(RUN)
    (folder / "rank0.samples.jsonl").write_text(SAMPLES)
    return folder


def test_a_file_that_appears_while_export_works_is_kept(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "timeline.json"
    load = whystall.load

    def meanwhile(*arguments: object, **options: object) -> Trace:
        path.write_text("theirs")
        return load(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(whystall, "load", meanwhile)
    outcome = cli("export", whystall.demo_recording(), "--format", "perfetto", "-o", path)

    assert outcome.code == 2
    assert "timeline.json exists" in outcome.err
    assert path.read_text() == "theirs"


@pytest.mark.parametrize("verb", ["analyze", "report", "compare"])
def test_a_file_that_appears_while_a_report_is_made_is_kept(
    cli: Cli, api: FakeApi, trace_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    path = tmp_path / "page.html"
    analyze = api.analyze

    def meanwhile(*arguments: object, **options: object) -> object:
        path.write_text("theirs")
        return analyze(*arguments, **options)

    monkeypatch.setattr(whystall, "analyze", meanwhile)
    outcome = cli(verb, trace_file, *([trace_file] if verb == "compare" else []), "-o", path)

    assert outcome.code == 2
    assert path.read_text() == "theirs"


@pytest.mark.parametrize("name", ["thesis.tex", "empty.prom"])
def test_metrics_are_written_over_nothing_but_metrics(cli: Cli, ended_run: Path, tmp_path: Path, name: str) -> None:
    theirs = "" if name == "empty.prom" else "mine"
    (tmp_path / name).write_text(theirs)

    outcome = cli("watch", ended_run, "--once", "--metrics", tmp_path / name)

    assert outcome.code == 2
    assert "whystall did not write" in outcome.err
    assert (tmp_path / name).read_text() == theirs


def test_metrics_replace_earlier_ones_and_keep_their_mode(cli: Cli, ended_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "job.prom"
    assert cli("watch", ended_run, "--once", "--metrics", path).code == 0
    path.chmod(0o604)
    before = path.stat().st_ino

    assert cli("watch", ended_run, "--once", "--metrics", path).code == 0

    assert path.stat().st_ino != before
    assert stat.S_IMODE(path.stat().st_mode) == 0o604


@pytest.mark.parametrize(
    ("verb", "key", "value"),
    [
        ("watch", "metrics", '"thesis.tex"'),
        ("analyze", "output", '["new.html"]'),
        ("model", "html", '"new.html"'),
        ("compare", "baselines", '"elsewhere"'),
        ("analyze", "ray-address", '"ray://10.0.0.1:10001"'),
        ("analyze", "no-limits", "true"),
        ("verify", "before", '"touch thesis.tex"'),
        ("verify", "after", '"touch thesis.tex"'),
        ("verify", "toggle", '"FAST"'),
        ("run", "until-verdict", "true"),
        ("run", "experiments", "true"),
        ("tune", "knob", '"batch_size"'),
        ("probe", "nccl-tests", '"./all_reduce_perf"'),
    ],
)
def test_the_project_file_of_a_folder_names_no_output_and_lifts_no_bound(
    cli: Cli, ended_run: Path, tmp_path: Path, verb: str, key: str, value: str
) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    settings = f"[tool.whystall.{verb}]\n{key} = {value}\n"
    (tmp_path / "pyproject.toml").write_text(settings)

    outcome = cli("watch", ended_run, "--once")

    assert outcome.code == 2
    assert f"--{key}" in outcome.err
    assert (tmp_path / "thesis.tex").read_text() == "mine"
    if verb == "watch":  # a file that the user names may
        (tmp_path / "pyproject.toml").rename(tmp_path / "mine.toml")
        (tmp_path / "mine.toml").write_text('[watch]\nmetrics = "new.prom"\n')
        assert cli("watch", ended_run, "--once", "--config", "mine.toml").code == 0
        assert (tmp_path / "new.prom").read_text().startswith("# HELP whystall_")


def test_a_device_is_not_replaced_by_a_file(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "null"
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        os.mkfifo(path)

    before = path.stat()
    outcome = cli("export", whystall.demo_recording(), "--format", "json", "-f", "-o", path)

    assert outcome.code == 2
    assert "left as it is" in outcome.err
    assert (path.stat().st_ino, path.stat().st_mode) == (before.st_ino, before.st_mode)


def test_a_link_to_an_older_report_stays_a_link(cli: Cli, api: FakeApi, trace_file: Path, tmp_path: Path) -> None:
    (tmp_path / "v1.html").write_text("old")
    (tmp_path / "latest.html").symlink_to("v1.html")

    assert cli("report", trace_file, "-f", "-o", "latest.html").code == 0

    assert (tmp_path / "latest.html").is_symlink()
    assert (tmp_path / "v1.html").read_text().startswith("<html>")


@pytest.mark.parametrize("length", [245, 255, 256, 5000])
def test_a_long_name_is_written_or_refused_in_a_sentence(
    cli: Cli, api: FakeApi, trace_file: Path, tmp_path: Path, length: int
) -> None:
    name = "n" * (length - len(".html")) + ".html"

    outcome = cli("report", trace_file, "-o", name)

    assert outcome.code == (0 if length <= 255 else 2)
    if outcome.code:
        assert "File name too long" in outcome.err
        assert len(outcome.err) < 500
    else:
        assert (tmp_path / name).is_file()


@pytest.mark.parametrize(
    "words",
    [("analyze", "x.json"), ("report", "TRACE"), ("export", "TRACE", "--format", "csv", "-o", "tables"), ("doctor",),
     ("demo", "--no-open"), ("run", "--", "true"), ("tune", "--", "true"), ("memory", "."),
     ("analyze", "TRACE", "-o", "x.html"), ("compare", "--save", "x", "TRACE"), ("analyze", "../x.json")],
    ids=" ".join,
)  # fmt: skip
def test_a_working_folder_that_is_gone(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    try:
        outcome = cli(*(str(whystall.demo_recording()) if word == "TRACE" else word for word in words))
    finally:
        os.chdir(tmp_path)

    assert outcome.code in (2, 3), outcome
    assert outcome.err.count("\n") <= 3


def test_a_baseline_that_appears_while_it_is_saved_is_kept(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ".whystall" / "baselines" / "main.json"
    analyze = whystall.analyze

    def meanwhile(*arguments: object, **options: object) -> object:
        path.parent.mkdir(parents=True)
        path.write_text("theirs")
        return analyze(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(whystall, "analyze", meanwhile)
    outcome = cli("compare", "--save", "main", whystall.demo_recording())

    assert outcome.code == 2
    assert path.read_text() == "theirs"
