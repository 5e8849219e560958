"""A pipe, a socket or a device in place of a file ends in a sentence, at once, whatever it stands for."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import whystall

if TYPE_CHECKING:
    from .conftest import Cli

SAMPLES = '{"schema":"whystall.samples/1","rank":0,"columns":["step","duration_us","flags"]}\n[1,500,0]\n'
OF_A_RUN = (
    "run.json",
    "experiments.json",
    "ranks.json",
    "report.json",
    "rank0.run.json",
    "rank0.samples.jsonl",
    "rank0.flight.pickle",
    "rank0.memory.pickle",
    "rank1.trace.json.gz",
    "other.json",
    "export.sqlite",
    "profile.xplane.pb",
)


@pytest.fixture(params=["pipe", "socket", "device"])
def no_file(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "no-file.json"
    if request.param == "device":
        path.symlink_to("/dev/zero")
        yield path
    elif request.param == "pipe":
        os.mkfifo(path)
        yield path
    else:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
            yield path


@pytest.mark.parametrize(
    "words",
    [
        ("analyze", "PATH"),
        ("report", "PATH"),
        ("export", "--format", "json", "PATH"),
        ("export", "--format", "perfetto", "PATH"),
        ("export", "--format", "steps", "PATH"),
        ("compare", "PATH", "PATH"),
        ("memory", "PATH"),
        ("compile", "PATH"),
        ("hang", "PATH"),
        ("ranks", "PATH"),
        ("view", "--no-browser", "PATH"),
        ("watch", "--once", "PATH"),
        ("explain", "--config", "PATH", "host.sync"),
        ("analyze", "--kernel-classes", "PATH", "TRACE"),
    ],
    ids=" ".join,
)
def test_what_is_named(cli: Cli, no_file: Path, words: tuple[str, ...]) -> None:
    names = {"PATH": str(no_file), "TRACE": str(whystall.demo_recording())}
    outcome = cli(*(names.get(word, word) for word in words))

    assert outcome.code in (2, 3), outcome
    assert len(outcome.err.splitlines()) <= 3


def test_the_sentence_says_what_it_is(cli: Cli, no_file: Path) -> None:
    outcome = cli("analyze", no_file)

    assert outcome.code == 3
    words = ("a pipe", "a socket", "a device")
    assert any(f"it is {word}, and only regular files are read" in outcome.err for word in words)


@pytest.mark.parametrize("verb", ["analyze", "report", "compile", "hang", "memory", "watch", "export"])
@pytest.mark.parametrize("name", OF_A_RUN)
def test_what_lies_in_a_run_folder(cli: Cli, tmp_path: Path, verb: str, name: str) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text('{"schema": "whystall.run/1", "exit_code": 0}')
    (run / "rank0.samples.jsonl").write_text(SAMPLES)
    shutil.copy(whystall.demo_recording(), run / "rank0.trace.json.gz")
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    more = {"watch": ["--once"], "export": ["--format", "json"]}

    outcome = cli(verb, run, *more.get(verb, []))

    assert outcome.code in (0, 2, 3), outcome
    assert "internal error" not in outcome.err


def test_what_lies_in_the_caches(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, trace = tmp_path / "kept", tmp_path / "trace.json.gz"
    monkeypatch.setenv("WHYSTALL_CACHE_DIR", str(kept))
    monkeypatch.setenv("WHYSTALL_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("whystall.trace.load._LEAST_FILE_BYTES", 0)
    monkeypatch.setattr("whystall.trace.cache.LEAST_RAW_BYTES", 0)
    monkeypatch.setattr(
        "whystall.trace.cache.TraceCache.__init__.__kwdefaults__", {"least_raw_bytes": 0, "largest_bytes": 1 << 30}
    )
    shutil.copy(whystall.demo_recording(), trace)
    assert cli("analyze", trace).code == 0
    files = [path for path in kept.rglob("*") if path.is_file()]
    assert files
    (kept / "calibration").mkdir(mode=0o700, exist_ok=True)
    (tmp_path / "data").mkdir()
    for path in (*files, kept / "calibration" / "cpu.json", tmp_path / "data" / "remedies.jsonl"):
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        assert cli("analyze", trace).code == 0, path
