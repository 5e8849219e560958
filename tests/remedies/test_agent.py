"""An agent's loop over MCP: it hands in changes, and each is kept or rejected with its numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import ClientSession, StdioServerParameters, stdio_client
from tests.remedies.jobs import JOB

import whystall


def patch_of(folder: Path, changes: dict[str, str]) -> str:
    text = JOB
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "old.py").write_text(JOB)
    (folder / "new.py").write_text(text)
    command = ["git", "diff", "--no-index", "old.py", "new.py"]
    text = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout
    return text.replace("old.py", "train.py").replace("new.py", "train.py")


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(JOB)
    yield folder
    assert (folder / "train.py").read_text() == JOB


def ask(folder: Path, questions: list[tuple[str, dict[str, Any]]], *options: str) -> list[tuple[str, bool]]:
    async def conversation() -> list[tuple[str, bool]]:
        words = ["-m", "whystall", "mcp", "-q", *options, str(folder)]
        server = StdioServerParameters(command=sys.executable, args=words, cwd=str(folder))
        async with stdio_client(server) as (incoming, outgoing), ClientSession(incoming, outgoing) as session:
            await session.initialize()
            answers = [await session.call_tool(name, given) for name, given in questions]
        return [(answer.content[0].text, bool(answer.is_error)) for answer in answers]  # type: ignore[union-attr]

    return anyio.run(conversation)


@pytest.mark.alone
def test_a_good_a_useless_and_a_harmful_change(project: Path, tmp_path: Path) -> None:
    slow = {"time.sleep(0.005)  # a slow disk": "pass"}
    good = patch_of(tmp_path, slow)
    useless = patch_of(tmp_path, {"    # the end\n": "    # the very end\n"})
    harmful = patch_of(tmp_path, {**slow, "lr=0.01": "lr=0.9"})  # faster, and it learns otherwise
    answers = ask(
        project, [("judge_change", {"patch": one}) for one in (good, useless, harmful)], "--job", "python train.py"
    )
    assert [failed for _, failed in answers] == [False] * 3
    told = [json.loads(text) for text, _ in answers]
    assert [one["verdict"] for one in told] == ["kept", "rejected", "rejected"]
    assert told[0]["speed_up"]["low"] > 1.3


def test_without_a_command_nothing_is_run(project: Path) -> None:
    [(text, failed)] = ask(project, [("judge_change", {"patch": "--- a\n+++ b\n"})])
    assert failed
    assert "no tool is called 'judge_change'" in text


def test_a_patch_that_does_not_apply_is_said(project: Path) -> None:
    [(text, failed)] = ask(project, [("judge_change", {"patch": "nonsense"})], "--job", "python train.py")
    assert failed
    assert "does not apply" in text


def test_the_brief_has_causes_lines_and_the_measure(project: Path) -> None:
    (project / "trace.json.gz").write_bytes(whystall.demo_recording().read_bytes())
    [(text, failed)] = ask(project, [("brief", {"path": "trace.json.gz"})], "--job", "python train.py")
    assert not failed
    told = json.loads(text)
    assert {"verdict", "accepted", "tried", "causes"} <= told.keys()
    assert all(one["remedy"] for one in told["causes"])
