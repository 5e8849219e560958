"""A job is watched from outside while it runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.cli.conftest import Cli
from tests.trace.test_following import HEAD, row

from whystall._api import demo_recording
from whystall.cli.watch import Watched
from whystall.run_folder.alive import this_process


def run_of(folder: Path, *rows: bytes, exit_code: int | None = None, trace: bool = False) -> Path:
    (folder / "run.json").write_text(json.dumps({"schema": "whystall.run/1", "exit_code": exit_code, "ranks": []}))
    (folder / "rank2.samples.jsonl").write_bytes(HEAD + b"".join(rows))
    if trace:
        shutil.copy(demo_recording(), folder / "rank2.trace.json.gz")
    return folder


EVEN = [row(number, 40_000, forward_us=30_000) for number in range(130)]
SLOWER = [row(number, 60_000, forward_us=50_000) for number in range(130, 230)]


def test_pace_slowdown_and_verdict_of_a_job_that_runs(cli: Cli, tmp_path: Path) -> None:
    folder, metrics = run_of(tmp_path, *EVEN, *SLOWER, trace=True), tmp_path / "job.prom"
    done = cli("watch", str(folder), "--once", "--metrics", str(metrics))
    assert done.code == 0
    assert "step 230 · 60.0 ms each (the latest 84) · forward 83.3 %, other 16.7 %" in done.out
    assert "slower: steps take 1.50 times as long as at first; forward grew by 20.0 ms" in done.out
    assert (folder / "capture-now").exists()
    assert "so far: " in done.out
    assert 'whystall_step_pace_ratio{run="' in metrics.read_text()


def test_a_job_that_becomes_slower_still_is_told_again(tmp_path: Path) -> None:
    """Another program slowed it a little first; what comes then is worth a window of its own."""
    said: list[str] = []
    console = SimpleNamespace(result=said.append, next=said.append)
    folder = run_of(tmp_path, *EVEN, *SLOWER)
    samples, watched = folder / "rank2.samples.jsonl", Watched(folder, console, windows=True)  # type: ignore[arg-type]
    at = 230
    for length, times in ((60_000, "1.50"), (90_000, "2.25"), (92_000, None)):
        with samples.open("ab") as file:
            file.writelines(row(number, length) for number in range(at, at + 100))
        at += 100
        said.clear()
        for _ in range(2):
            watched._ours_until = 0.0  # our own work of the last look is long over
            watched.look()
        told = [line for line in said if line.startswith("slower")]
        assert [times is not None] == [bool(told)]
        assert times is None or f"{times} times as long" in told[0]
        assert times is None or "a window was asked for, to see why" in said
    assert (folder / "capture-now").exists()


def test_what_our_own_work_slows_is_no_slowdown_of_the_job(tmp_path: Path) -> None:
    """A verdict takes a core for seconds; steps of that time say nothing."""
    said: list[str] = []
    console = SimpleNamespace(result=said.append, next=said.append)
    folder = run_of(tmp_path, *EVEN)
    samples, watched = folder / "rank2.samples.jsonl", Watched(folder, console, windows=True)  # type: ignore[arg-type]
    watched.look()
    with samples.open("ab") as file:
        file.writelines(SLOWER)
    watched.look()
    assert not [line for line in said if line.startswith("slower")]
    watched._ours_until -= 6.0
    watched.look()
    assert not [line for line in said if line.startswith("slower")]  # it may be a moment
    watched.look()
    assert [line for line in said if line.startswith("slower")]


def test_a_job_whose_pace_differs_by_itself_is_slower_only_beyond_that(cli: Cli, tmp_path: Path) -> None:
    """Every five seconds another pace, by up to a fifth, and then half as long again; or quick at first alone."""
    paces = [40_000, 46_000, 38_000, 44_000, 48_000, 41_000, 39_000, 45_000, 42_000, 47_000]
    own = [row(number, paces[number // 125 % len(paces)]) for number in range(2_500)]
    quiet = [row(number, 40_000) for number in range(2_500)]
    quick = [row(number, 36_000 if number < 200 else 40_000) for number in range(2_500)]
    usual = [row(number, 41_500) for number in range(2_500, 2_700)]
    longer = [row(number, 47_500, input_us=7_500) for number in range(2_500, 2_700)]
    much = [row(number, 66_000) for number in range(2_500, 2_700)]
    for rows, told in (
        ([*own, *longer], False),
        ([*own, *much], True),
        ([*quiet, *longer], True),
        ([*quick, *usual], False),
    ):
        said = cli("watch", str(run_of(tmp_path, *rows)), "--once").out
        assert ("slower" in said) is told


def test_a_good_moment_at_first_is_no_pace_of_short_steps(cli: Cli, tmp_path: Path) -> None:
    moment, after = range(120), range(120, 12_000)
    rows = [*(row(number, 1_000) for number in moment), *(row(number, 1_200) for number in after)]
    assert "slower" not in cli("watch", str(run_of(tmp_path, *rows)), "--once").out


def ticks(at_s: float, busy: int, own: int) -> bytes:
    return json.dumps({"at_unix_ns": round(at_s * 1e9), "cpu_ticks": [busy, own]}).encode() + b"\n"


@pytest.mark.parametrize(
    ("others", "told"), [(1.5, "; other programs use 1.5 cores"), (0.3, "; other programs use 0.3 cores"), (0.1, "")]
)
def test_cores_that_others_took_are_named_beside_a_slowdown(cli: Cli, tmp_path: Path, others: float, told: str) -> None:
    """A hundred ticks are a core for a second; the job's own are none of others."""
    before = [ticks(100 + second, 150 * second, 150 * second) for second in range(10)]
    lately = [
        ticks(110 + second, 1500 + round((150 + 100 * others) * second), 1500 + 150 * second) for second in range(10)
    ]
    done = cli("watch", str(run_of(tmp_path, *EVEN, *before, *SLOWER, *lately)), "--once")
    assert f"forward grew by 20.0 ms{told}\n" in done.out


@pytest.mark.parametrize(
    ("times", "input_us", "others", "told"),
    [
        (1.22, 0, 0.0, ""),
        (
            1.30,
            0,
            0.0,
            "longer: steps take 1.30 times as long as at first, in computing alone: the machine may be slower",
        ),
        (
            1.30,
            0,
            1.0,
            "slower: steps take 1.30 times as long as at first; forward grew by 9.00 ms; other programs use 1 c",
        ),
        (1.30, 12_000, 0.0, "slower: steps take 1.30 times as long as at first; input grew by 12.0 ms"),
    ],
)
def test_computing_that_takes_a_little_longer_is_laid_to_no_fault(
    cli: Cli, tmp_path: Path, times: float, input_us: int, others: float, told: str
) -> None:
    forward_us = 30_000 if input_us else round(30_000 * times)
    latest = [
        row(number, round(40_000 * times), forward_us=forward_us, input_us=input_us) for number in range(130, 260)
    ]
    before = [ticks(100 + second, 150 * second, 150 * second) for second in range(10)]
    lately = [
        ticks(110 + second, 1500 + round((150 + 100 * others) * second), 1500 + 150 * second) for second in range(10)
    ]
    said = cli("watch", str(run_of(tmp_path, *EVEN, *before, *latest, *lately)), "--once").out
    assert told in said
    assert ("times as long" in said) is bool(told)
    assert (tmp_path / "capture-now").exists() is bool(told)


def test_the_other_rank_is_no_other_program(cli: Cli, tmp_path: Path) -> None:
    """Two cores are busy, a half with somebody else's program: each rank has three quarters of one."""
    clock = [ticks(100 + second, 200 * second, 75 * second) for second in range(20)]
    folder = run_of(tmp_path, *EVEN, *SLOWER, *clock)
    mate = (folder / "rank2.samples.jsonl").read_bytes().replace(b'"rank": 2', b'"rank": 3')
    (folder / "rank3.samples.jsonl").write_bytes(mate)
    said = cli("watch", str(folder), "--once").out
    assert "rank 2: steps take 1.50 times" in said
    assert "other programs use 0.5 cores" in said


def test_a_job_that_keeps_its_pace_is_left_alone_and_one_that_ended_ends_the_watch(cli: Cli, tmp_path: Path) -> None:
    done = cli("watch", str(run_of(tmp_path, *EVEN, exit_code=0)))
    assert done.code == 0
    assert "slower" not in done.out
    assert "the job has ended" in done.out
    assert not (tmp_path / "capture-now").exists()


def test_a_job_that_was_killed_with_its_launcher_ends_the_watch(cli: Cli, tmp_path: Path) -> None:
    """Nobody says so any more: the processes that the folder names are gone."""
    here = this_process()
    assert here is not None
    gone = {"place": here.place, "pid": here.pid, "began_ticks": here.began_ticks - 1}
    run_of(tmp_path, *EVEN)
    found = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(found | {"process": gone}))
    (tmp_path / "rank2.run.json").write_text(json.dumps({"rank": 2, "ended": False, "process": gone}))
    done = cli("watch", str(tmp_path))
    assert done.code == 0
    assert "the job has ended" in done.out


def test_no_window_is_asked_for_where_none_is_wanted(cli: Cli, tmp_path: Path) -> None:
    assert "slower" in cli("watch", str(run_of(tmp_path, *EVEN, *SLOWER)), "--once", "--no-windows").out
    assert not (tmp_path / "capture-now").exists()


def test_before_the_first_step_there_is_nothing_to_say(cli: Cli, tmp_path: Path) -> None:
    folder = run_of(tmp_path)
    (folder / "rank2.samples.jsonl").unlink()
    assert "no step has ended yet" in cli("watch", str(folder), "--once").out


@pytest.mark.parametrize("words", [["--every", "0"], ["--every", "nan"], ["--metrics", "/nowhere/at/all"]])
def test_what_cannot_be_done_is_a_usage_error(cli: Cli, tmp_path: Path, words: list[str]) -> None:
    assert cli("watch", str(run_of(tmp_path, *EVEN)), "--once", *words).code == 2


def test_a_folder_that_is_no_run_is_refused(cli: Cli, tmp_path: Path) -> None:
    done = cli("watch", str(tmp_path), "--once")
    assert done.code == 3
    assert "no folder of a run" in done.err
