"""Some hundred things that a job can see, do and leave, plain and watched: they are the same.

With ``WHYSTALL_BATTERY=complete`` all programs, and all once more beside a busy process for each core.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests import plain_jobs
from tests.battery.everything import ASPECTS, RAISED
from tests.battery.programs import LEARNS, OFTEN, PROGRAMS
from tests.plain_jobs import Ended

from whystall.capture.config import CaptureConfig
from whystall.capture.launch import watched_environment

EVERYTHING = str(Path(__file__).parent / "everything.py")
TIMEOUT_S = 300
# A program runs in a second or two, four times as long beside busy neighbours.
COMPLETE = os.environ.get("WHYSTALL_BATTERY") == "complete"
MACHINES = ["free", "busy"] if COMPLETE else ["free"]
# Kineto's own messages when any profiler begins, of which it is asked to say none while a job is watched.
_KINETO = re.compile(rb"^(?:USDT|INFO|WARNING|STAGE|ERROR):\d{4}-\d\d-\d\d .*\n", re.MULTILINE)
# A failure to record is reported once.
_SAID = re.compile(rb"^whystall: the job was not affected, but this was not recorded: run\.json .*\n", re.MULTILINE)
_ADDRESS = re.compile(rb"0x[0-9a-f]{8,}|Thread-\d+|pid=\d+")


class Seen(NamedTuple):
    code: int
    stdout: bytes
    stderr: bytes
    files: dict[str, str]


@contextlib.contextmanager
def machine(kind: str) -> Iterator[None]:
    """The machine as it is, or with a process for each core that does nothing but compute."""
    count = len(os.sched_getaffinity(0)) if kind == "busy" else 0
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def environment(folder: Path, *, watched: bool) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("WHYSTALL")}
    kept |= {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"}
    kept["PYTHONDONTWRITEBYTECODE"] = "1"  # a program that limits its files writes none of whystall's
    return watched_environment(CaptureConfig(folder=str(folder)), kept) if watched else kept


def of_a_start(script: str, home: Path, run: Path, *, watched: bool) -> Ended:
    done = subprocess.run(
        [sys.executable, script], cwd=home, env=environment(run, watched=watched), input=b"given\n",
        capture_output=True, timeout=TIMEOUT_S, check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    return Ended(done.returncode, done.stdout, done.stderr)


def plain(script: str, home: Path, run: Path) -> Ended:
    return plain_jobs.run([script], home, environment(run, watched=False), b"given\n", TIMEOUT_S)


def ran(script: str, home: Path, run: Path, *, watched: bool) -> Seen:
    done = (
        of_a_start(script, home, run, watched=watched) if watched or script == EVERYTHING else plain(script, home, run)
    )
    files = {
        str(path.relative_to(home)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(home.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    said = _ADDRESS.sub(b"", _KINETO.sub(b"", done.stderr)).replace(str(home).encode(), b"")
    return Seen(done.code, _ADDRESS.sub(b"", done.stdout), said, files)


@pytest.fixture(scope="session")
def told(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def told_on(kind: str) -> tuple[dict[str, Any], dict[str, Any], Path]:
        found = []
        run = tmp_path_factory.mktemp("run")
        with machine(kind):
            for watched in (False, True):
                seen = ran(EVERYTHING, tmp_path_factory.mktemp("home"), run, watched=watched)
                assert seen.code == 0, seen.stderr
                found.append(json.loads(seen.stdout.splitlines()[-1]))
        return found[0], found[1], run

    return told_on


@pytest.mark.parametrize("kind", MACHINES)
def test_the_watched_job_was_watched(told: Any, kind: str) -> None:
    *_, run = told(kind)
    (rank,) = (json.loads(path.read_text()) for path in run.glob("rank*.run.json"))
    assert (rank["steps"] > 100, rank["not_recorded"]) == (True, {})
    assert (run / "rank0.trace.json.gz").exists()
    lines = [json.loads(line) for line in (run / "rank0.samples.jsonl").read_text().splitlines()]
    forward = lines[0]["columns"].index("forward_us")
    assert sum(line[forward] > 0 for line in lines if isinstance(line, list)) > 50


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("aspect", list(ASPECTS))
def test_a_job_sees_the_same(told: Any, aspect: str, kind: str) -> None:
    plain, watched, _ = told(kind)
    assert not (isinstance(plain[aspect], dict) and RAISED in plain[aspect]), "it shows nothing where it fails plainly"
    assert watched[aspect] == plain[aspect]


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("name", list(PROGRAMS) if COMPLETE else OFTEN)
def test_a_job_does_and_leaves_the_same(tmp_path: Path, name: str, kind: str) -> None:
    seen = []
    with machine(kind):
        for watched in (False, True):
            home = tmp_path / str(watched)
            home.mkdir()
            (home / "job.py").write_text(LEARNS + PROGRAMS[name])
            seen.append(ran("job.py", home, tmp_path / "run", watched=watched))
    if name == "limits its files to little":
        assert _SAID.search(seen[1].stderr)
        seen[1] = seen[1]._replace(stderr=_SAID.sub(b"", seen[1].stderr))
    assert seen[1] == seen[0]
    assert b"learned" in seen[0].stdout
    assert list((tmp_path / "run").glob("rank0.samples.jsonl"))


def test_watching_replaces_no_attribute_of_a_module_or_a_class(tmp_path: Path) -> None:
    """Functions that are heard run other code, for as long; that they are themselves is asked above."""
    script = str(Path(__file__).parent / "changes.py")
    done = subprocess.run(
        [sys.executable, script, str(tmp_path)], env=environment(tmp_path, watched=False), capture_output=True,
        timeout=TIMEOUT_S, check=True,
    )  # fmt: skip
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["steps"] > 50
    assert told["replaced"] == []
    assert {place.rpartition(".")[2] for place in told["recoded"]} == {
        "save", "step", "__init__", "__iter__", "__next__", "_engine_run_backward", "_prepare_trace",
        "compile", "export", "trace", "_trace_impl", "_script_impl", "start", "__call__",  # a program is traced
    }  # fmt: skip
    assert told["kept"] == []
    added = {place for place in told["added"] if place.startswith(("__main__.", "torch.", "os.", "sys."))}
    assert added - {"__main__.__warningregistry__"} == set()
