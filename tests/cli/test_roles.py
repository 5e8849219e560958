"""`whystall roles`: from traces, from marks in a trace, and from the samples of real runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from whystall.cli import main
from whystall.testing import TraceBuilder, trace

JOB = Path(__file__).parents[1] / "fleet" / "jobs" / "roles.py"
MS = 1_000_000


def process(*work: tuple[int, int], until: int = 200) -> TraceBuilder:
    """A process whose device computes in some stretches (ms), recorded for ``until`` ms."""
    built = trace()
    built.annotation("loop", at=0, lasts=until * MS)
    for begin, end in work:
        built.launch("nvjet_gemm", at=begin * MS, runs_at=begin * MS + 10_000, lasts=(end - begin) * MS - 10_000)
    return built


def told(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, object]:
    assert main(["roles", "--json", "-q", "--no-cache", *map(str, words)]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_traces_of_several_roles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, end in enumerate((30, 40, 60, 100)):
        process((0, end)).write(tmp_path / f"rollout{number}.json")
    process((120, 180)).write(tmp_path / "trainer.json")
    words = [f"rollout={tmp_path}/rollout{number}.json" for number in range(4)]
    found = told(capsys, *words, f"trainer={tmp_path}/trainer.json")
    roles = {role["role"]: role for role in found["roles"]}  # type: ignore[attr-defined]
    assert found["by"] == "traces"
    assert roles["rollout"]["alone_ns"] == pytest.approx(100 * MS, abs=0.1 * MS)
    assert roles["rollout"]["tail_ns"] == pytest.approx(60 * MS, abs=0.1 * MS)  # from 40 ms on two, then one of four
    assert roles["trainer"]["alone_ns"] == pytest.approx(60 * MS, abs=0.1 * MS)
    assert roles["trainer"]["waits_ns"] == pytest.approx(100 * MS, abs=0.1 * MS)
    assert "rollout works alone 50.0 % of the time, and trainer waits for it" in str(found["summary"])


def test_marks_in_one_trace_tell_the_phases_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights are brought over within the rollout: that time is no rollout's."""
    built = process((0, 80), (100, 160))
    for name, begin, end in (("generate_sequences", 0, 90), ("update_weights", 0, 20), ("update_actor", 95, 165)):
        built.annotation(name, at=begin * MS, lasts=(end - begin) * MS)
    built.write(tmp_path / "all.json")
    found = told(capsys, tmp_path / "all.json")
    roles = {role["role"]: role for role in found["roles"]}  # type: ignore[attr-defined]
    assert roles["sync"]["alone_ns"] == pytest.approx(20 * MS, abs=0.1 * MS)
    assert roles["rollout"]["alone_ns"] == pytest.approx(60 * MS, abs=0.1 * MS)
    assert roles["training"]["alone_ns"] == pytest.approx(60 * MS, abs=0.1 * MS)
    assert (roles["training"]["steps"], roles["training"]["step_name"]) == (1, "update_actor")
    assert "the phases follow each other" in str(found["summary"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["a=x.json", "y.json"], "either each PATH has its ROLE="),
        (["a=missing.json", "b=gone.json"], "missing.json"),
    ],
)
def test_what_cannot_be_told_is_said_in_a_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["roles", *words]) in {2, 3}
    assert sentence in capsys.readouterr().err


def test_recordings_of_other_times_and_a_single_role_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process((0, 80)).write(tmp_path / "one.json")
    late = trace()
    late.annotation("loop", at=900 * MS, lasts=100 * MS)
    late.launch("nvjet_gemm", at=900 * MS, runs_at=901 * MS, lasts=MS)
    late.write(tmp_path / "late.json")
    assert main(["roles", "-q", f"a={tmp_path}/one.json", f"b={tmp_path}/late.json"]) == 3
    assert "share no moment" in capsys.readouterr().err
    assert main(["roles", "-q", f"a={tmp_path}/one.json"]) == 3
    assert "there is one role" in capsys.readouterr().err


def test_names_are_escaped_on_the_page(tmp_path: Path) -> None:
    process((0, 80)).write(tmp_path / "one.json")
    process((90, 100)).write(tmp_path / "two.json")
    page = tmp_path / "page.html"
    assert main(["roles", "-q", f"a b={tmp_path}/one.json", f"c={tmp_path}/two.json", "-o", str(page)]) == 0
    assert "works alone" in page.read_text()


@pytest.mark.alone
def test_samples_of_real_runs_tell_what_the_job_itself_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trainer and two rollouts, one with four times the passes; the truth is what the job wrote down."""
    pytest.importorskip("torch")
    jobs = [("trainer", []), ("rollout", ["0", "12"]), ("rollout", ["1", "48"])]
    # Without recorded windows, whose trace takes as long to write as several rounds of this job.
    whystall = [sys.executable, "-m", "whystall", "run", "-q", "--wait", "100000"]
    running = [
        subprocess.Popen(
            [*whystall, "-o", str(tmp_path / f"run{number}"), str(JOB), role, str(tmp_path), "30", *more],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for number, (role, more) in enumerate(jobs)
    ]
    try:
        assert [one.wait(timeout=300) for one in running] == [0, 0, 0]
    finally:
        for one in running:
            one.kill()
            one.wait()
    words = [f"{role}={tmp_path}/run{number}" for number, (role, _) in enumerate(jobs)]
    found = told(capsys, *words)
    roles = {role["role"]: role for role in found["roles"]}  # type: ignore[attr-defined]
    window = found["window_ns"]
    assert isinstance(window, int)
    assert found["by"] == "samples"
    busy, tail = truth(tmp_path)
    assert roles["rollout"]["alone_ns"] > roles["trainer"]["alone_ns"]
    assert roles["rollout"]["work_ns"] / window == pytest.approx(busy, abs=0.12)
    assert roles["rollout"]["tail_ns"] / window == pytest.approx(tail, abs=0.12)
    assert roles["trainer"]["steps"] >= 25


def truth(folder: Path) -> tuple[float, float]:
    """The share of the job's time in which a rollout ran, and in which only the longer one did."""

    def read(name: str) -> list[tuple[int, int]]:
        lines = (folder / f"truth.{name}").read_text().splitlines()
        return [(int(begin), int(end)) for begin, end in (line.split() for line in lines)]

    short, long, trainer = (read(name) for name in ("rollout0", "rollout1", "trainer0"))
    whole = trainer[-1][1] - trainer[0][0] + short[0][1] - short[0][0]
    busy = sum(max(one[1], other[1]) - min(one[0], other[0]) for one, other in zip(short, long, strict=True))
    tail = sum(abs(other[1] - one[1]) for one, other in zip(short, long, strict=True))
    return busy / whole, tail / whole
