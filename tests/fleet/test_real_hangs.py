"""Real gloo jobs that hang: named with rank, operation and line from the dumps of torch's own recorder alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from whystall.fleet import Hang, Kind, Wait, find_hangs, read_dumps

pytest.importorskip("torch")
JOB = Path(__file__).parent / "jobs" / "hang.py"
RANKS = 3
FIRST_BAD = 5  # two rounds of two calls come before


def line_of(marker: str) -> int:
    return next(number for number, text in enumerate(JOB.read_text().splitlines(), 1) if f"# line of {marker}" in text)


@pytest.fixture(scope="module", params=["sleep", "skip", "other"])
def dumped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The fault and the folder with what three real processes dumped."""
    return request.param, ran(request.param, tmp_path_factory.mktemp("hang"))


def ran(fault: str, folder: Path) -> Path:
    for form in ("pickle", "json"):
        (folder / form).mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS)}
    running = [
        subprocess.Popen(
            [sys.executable, str(JOB), fault, str(folder)],
            env=shared | {"RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stderr=subprocess.DEVNULL,
        )
        for rank in range(RANKS)
    ]
    try:
        assert [one.wait(timeout=300) for one in running] == [0] * RANKS
    finally:
        for one in running:
            one.kill()
            one.wait()
    return folder


def analysed(folder: Path) -> Hang:
    found = find_hangs(*read_dumps([folder]))
    assert len(found.hangs) == 1
    return found.hangs[0]


def test_rank_operation_and_line_are_named(dumped: tuple[str, Path]) -> None:
    fault, folder = dumped

    hang = analysed(folder / "pickle")

    assert hang.ranks == (1,)
    assert (hang.sequence, hang.operation, hang.description) == (FIRST_BAD, "all_reduce", "default_pg")
    assert hang.call is not None
    assert hang.call.place is not None
    assert (Path(hang.call.place.file), hang.call.place.line) == (JOB, line_of("the gradients"))
    own = hang.others[0]
    assert own.place is not None
    expected = {
        "sleep": (Kind.MISSING_ENTER, None, "all_gather", line_of("the metrics")),  # its last call
        "skip": (Kind.MISMATCH, Wait.LEFT_OUT, "all_gather", line_of("the metrics")),
        "other": (Kind.MISMATCH, None, "broadcast", line_of("the wrong call")),
    }
    assert (hang.kind, hang.shift, own.operation, own.place.line) == expected[fault]


def test_json_names_the_same_without_lines(dumped: tuple[str, Path]) -> None:
    _, folder = dumped

    told, full = analysed(folder / "json"), analysed(folder / "pickle")

    assert (told.kind, told.ranks, told.sequence, told.operation) == (
        full.kind,
        full.ranks,
        full.sequence,
        full.operation,
    )
    assert told.call is not None
    assert told.call.place is None


def test_a_job_that_ends_names_nobody(tmp_path: Path) -> None:
    found = find_hangs(*read_dumps([ran("none", tmp_path) / "pickle"]))

    assert (found.hangs, found.unfinished, found.ranks) == ((), 0, (0, 1, 2))
