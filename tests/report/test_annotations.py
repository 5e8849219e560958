"""Workflow commands: what a runner reads from each line, undone by the runner's own rules."""

from __future__ import annotations

import msgspec
import pytest
from tests.report.conftest import SAMPLES

from whystall.diagnosis.finding import CodeLocation
from whystall.report.registry import Options, render
from whystall.report.schema import Report


def as_the_runner_reads(line: str) -> tuple[str, dict[str, str], str]:
    """Level, properties and message of a line (actions/toolkit, docs/commands.md)."""
    assert line.startswith("::")
    head, _, message = line[2:].partition("::")
    level, _, told = head.partition(" ")
    properties = dict(part.split("=", 1) for part in told.split(","))
    undone = {name: undo(value, {"%2C": ",", "%3A": ":"}) for name, value in properties.items()}
    return level, undone, undo(message, {})


def undo(text: str, more: dict[str, str]) -> str:
    for escaped, letter in {**more, "%0D": "\r", "%0A": "\n", "%25": "%"}.items():
        text = text.replace(escaped, letter)
    return text


def annotated(report: Report, root: str | None = None) -> list[tuple[str, dict[str, str], str]]:
    return [as_the_runner_reads(line) for line in render(report, "github", Options(root=root)).splitlines()]


def with_place(file: str, line: int | None, **changes: object) -> Report:
    report = SAMPLES["diagnosed"]()
    code = [CodeLocation(file=file, line=line, symbol="loss.item()")]
    finding = msgspec.structs.replace(report.findings[0], severity="critical", code=code, **changes)
    return msgspec.structs.replace(report, findings=[finding])


def test_a_finding_stands_at_its_line_below_the_checkout() -> None:
    verdict, found = annotated(with_place("/home/me/job/src/train.py", 27), "/home/me/job")
    assert verdict[0] == "notice"
    assert verdict[2] == SAMPLES["diagnosed"]().verdict.summary
    level, properties, message = found
    assert level == "error"
    assert (properties["file"], properties["line"]) == ("src/train.py", "27")
    assert message
    assert annotated(with_place("src/train.py", 27), "/home/me/job")[1][1]["file"] == "src/train.py"


@pytest.mark.parametrize(("file", "line"), [("/opt/lib/loader.py", 3), ("<string>", 3), ("src/train.py", None)])
def test_what_is_not_in_the_checkout_stands_nowhere(file: str, line: int | None) -> None:
    assert "file" not in annotated(with_place(file, line), "/home/me/job")[1][1]


def test_a_name_makes_no_second_command() -> None:
    title = "a,line=9::error::b%0A\n::set-env name=X::y"
    lines = render(with_place("src/a,b:c.py", 4, title=title), "github", Options(root="/r")).splitlines()
    assert len(lines) == 2
    _, properties, _ = as_the_runner_reads(lines[1])
    assert set(properties) == {"title", "file", "line"}
    assert properties["file"] == "src/a,b:c.py"
    assert properties["line"] == "4"
    assert "set-env name=X::y" in properties["title"]


def test_what_is_only_worth_knowing_is_no_annotation() -> None:
    report = with_place("src/train.py", 1)
    noted = [msgspec.structs.replace(report.findings[0], severity="info")]
    assert len(annotated(msgspec.structs.replace(report, findings=noted))) == 1
