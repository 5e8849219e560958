"""The skill for agents: each command in it is one that whystall takes."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import pytest

from whystall.cli._parser import parse
from whystall.cli.registry import VERBS

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


def commands(text: str) -> list[list[str]]:
    return [shlex.split(line)[1:] for line in re.findall(r"^ {7}(whystall .*)$", text, flags=re.MULTILINE)]


def test_its_commands_are_understood(cli: Cli) -> None:
    text = cli("skill").out
    found = commands(text)
    assert {words[0] for words in found} == {"run", "analyze", "explain", "fix"}
    for words in found:
        command, _ = parse(words)
        assert command.name == words[0]


def test_a_command_that_is_none_would_be_found(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["fix", "--no-such-option", "x"])
    assert "no-such-option" in capsys.readouterr().err
    assert "skill" in {verb.name for verb in VERBS}


def test_it_begins_as_skills_do_and_is_short(cli: Cli) -> None:
    lines = cli("skill").out.splitlines()
    assert lines[0] == "---"
    assert lines[1] == "name: whystall"
    assert lines[2].startswith("description: ")
    assert len(lines) <= 60
