"""Runs real jobs under ``whystall run`` and reads what they left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from whystall.capture.config import CaptureConfig
from whystall.capture.launch import watched_environment

collect_ignore_glob = ["jobs/*"]  # programs to run, not tests

JOBS = Path(__file__).parent / "jobs"
TIMEOUT_S = 180


@dataclass(frozen=True, slots=True)
class Ran:
    """A finished job."""

    code: int
    stdout: str
    stderr: str
    folder: Path

    def ranks(self) -> list[dict[str, Any]]:
        found = json.loads((self.folder / "run.json").read_text())["ranks"]
        return sorted(found, key=lambda rank: rank["rank"])

    def steps(self, rank: int = 0) -> list[dict[str, int]]:
        lines = (self.folder / f"rank{rank}.samples.jsonl").read_text().splitlines()
        columns = json.loads(lines[0])["columns"]
        return [dict(zip(columns, json.loads(line), strict=True)) for line in lines if line.startswith("[")]

    def losses(self) -> list[str]:
        return [line for line in self.stdout.splitlines() if line.startswith("loss ")]


class Jobs:
    """Starts jobs in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.home = folder
        self.folder = folder / "run"

    def environment(self, **changes: str) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("WHYSTALL_CAPTURE")}
        return {**kept, "OMP_NUM_THREADS": "1", **changes}

    def whystall(self, *words: str, options: tuple[str, ...] = (), **environment: str) -> Ran:
        """``whystall run`` with the given words."""
        command = [sys.executable, "-m", "whystall", "run", "-o", str(self.folder), *options, *words]
        return self.command(*command, **environment)

    def watched(self, *words: str, **asked: Any) -> Ran:
        """Python as ``whystall run`` starts it, with what is asked of the capture; nothing is joined or reported."""
        config = CaptureConfig(folder=str(self.folder), **asked)
        return self.command(sys.executable, *words, **watched_environment(config, self.environment()))

    def command(self, *command: str, **environment: str) -> Ran:
        """Any command."""
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            cwd=self.home,
            env=self.environment(**environment),
        )
        return Ran(done.returncode, done.stdout, done.stderr, self.folder)


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path)


@pytest.fixture
def steps_that_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at what is computed again does not wait for seconds to pass."""
    monkeypatch.setattr("whystall.capture.repeats._WAITS_NS", 0)
