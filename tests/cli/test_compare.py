"""The verbs ``compare`` and ``explain`` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import whystall
from whystall.cli import main
from whystall.diagnosis.catalogue import causes


@pytest.fixture
def recording() -> str:
    return str(whystall.demo_recording())


def test_compare_prints_and_writes(recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "c.html"
    assert main(["compare", recording, recording, "-o", str(page)]) == 0
    assert "no change beyond the noise" in capsys.readouterr().out
    assert page.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert main(["compare", recording, recording, "-o", str(page)]) == 2  # exists, and no --force


def test_a_crossed_threshold_is_the_exit_code(recording: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", recording, recording, "--fail-on", "step>+3%", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "whystall.comparison/1"
    assert main(["compare", recording, recording, "--fail-on", "operator:nosuch>+10%"]) == 2
    assert "no operator of the two runs is called 'nosuch'" in capsys.readouterr().err
    assert main(["compare", recording, recording, "--fail-on", "nonsense"]) == 2
    assert "is no condition" in capsys.readouterr().err


def test_unreadable_sides(recording: str, tmp_path: Path) -> None:
    assert main(["compare", recording, str(tmp_path / "none")]) == 3


@pytest.mark.parametrize("cause", causes())
def test_explain_tells_of_every_cause(cause: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", cause]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{cause}: ")
    assert "What to do" in printed
    assert "It worked when" in printed


def test_explain_lists_and_guesses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(causes())
    assert main(["explain", "--json", "host.gc"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == "host.gc"
    assert main(["explain", "host.snyc"]) == 2
    assert "did you mean host.sync" in capsys.readouterr().err
