"""Where memory is limited, a trace that needs more ends in a sentence and exit code 3."""

from __future__ import annotations

import gzip
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import whystall
from whystall.cli import main


def test_memory_that_runs_out_is_no_bug(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(whystall, "analyze", full)

    assert main(["analyze", str(whystall.demo_recording()), "--no-cache"]) == 3
    said = capsys.readouterr().err
    assert "not enough memory" in said
    assert "bug" not in said


def tiny_events(path: Path, count: int) -> Path:
    """A trace that packs a thousand times: the same small event over and over."""
    event = b'{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":1},'
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(b'{"traceEvents":[')
        for _ in range(count // 10_000):
            file.write(event * 10_000)
        file.write(event[:-1] + b"]}")
    return path


def test_a_small_file_of_many_events_ends_in_a_sentence(tmp_path: Path) -> None:
    path = tiny_events(tmp_path / "trace.json.gz", 10_000_000)

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))

    ended = subprocess.run(
        [sys.executable, "-m", "whystall", "analyze", str(path), "--no-cache", "-q"],
        preexec_fn=limited,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 3, ended.stderr
    assert ended.stderr.count("\n") == 1
    assert "GiB" in ended.stderr
