"""A job whose imports take long is not broken by being watched, with any Python of this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.battery.test_battery import COMPLETE, machine
from tests.capture.conftest import JOBS, Jobs, Ran
from tests.capture.import_places import PLACES, SELDOM, SLOWLY, STEPS

from whystall.capture.config import CaptureConfig
from whystall.capture.launch import watched_environment

JOB = str(JOBS / "slow_imports.py")
LONG_S = "20"
# Of the other Pythons; nobody waits twenty seconds for each of five in every run of the tests.
OTHERS_S = os.environ.get("WHYSTALL_SLOW_IMPORTS_S", "2")
FEWEST_STEPS = 40
TAKEN = [place for place in PLACES if COMPLETE or place not in SELDOM]


def pythons() -> list[str]:
    """The Pythons of this machine that start, from 3.9 on, one of each version."""
    here = Path(sys.base_prefix)
    found = [
        *map(str, sorted(here.parent.glob("*/bin/python3"))),
        *(shutil.which(f"python3.{n}") for n in range(9, 16)),
    ]
    asked: dict[tuple[int, ...], str] = {}
    for path in filter(None, found):
        said = subprocess.run(
            [path, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, check=False
        )
        version = tuple(map(int, said.stdout.split()))
        if version >= (3, 9):
            asked.setdefault(version, path)
    return [asked[version] for version in sorted(asked)]


def test_imports_that_take_long_after_torch_stay_whole(jobs: Jobs) -> None:
    ran = jobs.whystall(JOB, "0.1", LONG_S)
    assert ran.code == 0, ran.stderr
    assert ran.stdout == "tables True\ntrained\n"
    (rank,) = ran.ranks()
    assert (rank["steps"], rank["not_recorded"]) == (6, {})


def test_nothing_is_touched_however_soon_modules_are_looked_for(jobs: Jobs) -> None:
    ran = jobs.watched(JOB, "0.1", "3", optimizer_within_s=0.0)
    assert (ran.code, ran.stdout) == (0, "tables True\ntrained\n"), ran.stderr
    assert json.loads((ran.folder / "rank0.run.json").read_text())["not_recorded"] == {}


@pytest.mark.parametrize("python", pythons(), ids=lambda path: path.replace(os.sep, " ").strip())
def test_every_python_runs_the_job_to_its_end(jobs: Jobs, python: str) -> None:
    """Also those that whystall cannot run in, and a torch that is none."""
    (jobs.home / "torch.py").write_text("__version__ = '0.0'\n")
    config = CaptureConfig(folder=str(jobs.folder), optimizer_within_s=0.0)
    environment = watched_environment(config, jobs.environment(PYTHONPATH=str(jobs.home)))
    ran = jobs.command(python, JOB, "1", OTHERS_S, **environment)
    assert (ran.code, ran.stdout) == (0, "tables True\n"), ran.stderr
    assert "Traceback" not in ran.stderr


class Place(NamedTuple):
    """A job with a long import somewhere, as it runs plain and watched."""

    plain: Future[Ran]
    watched: Future[Ran]


def ran(place: str, home: Path, seconds: float | None) -> Ran:
    """The job plain, its imports short, or watched with so many ``seconds`` of importing."""
    for name, text in {"slowly.py": SLOWLY, "steps.py": STEPS, **PLACES[place]}.items():
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(text)
    jobs = Jobs(home)
    jobs.folder.mkdir()
    environment = jobs.environment(PYTHONPATH=str(home), SLOW_S=str(seconds or 0.1), HF_HUB_OFFLINE="1")
    if seconds is not None:
        environment = watched_environment(CaptureConfig(folder=str(jobs.folder)), environment)
    return jobs.command(sys.executable, "job.py", **environment)


def test_imports_that_take_long_are_left_alone_wherever_they_are(tmp_path: Path) -> None:
    """All jobs, beside each other on a busy machine; by default each import ends after a window by the clock is due.

    One test, since the places of several are not shared by the processes that run the tests.
    """
    shortest, longest = (5.0, 40.0) if COMPLETE else (7.0, 9.0)
    step = (longest - shortest) / (len(TAKEN) - 1)

    def started(pool: ThreadPoolExecutor, place: str, at: int) -> Place:
        homes = [tmp_path / f"{place} {kind}" for kind in ("plain", "watched")]
        for home in homes:
            home.mkdir()
        plain = pool.submit(ran, place, homes[0], None)
        return Place(plain, pool.submit(ran, place, homes[1], shortest + step * at))

    with machine("busy"), ThreadPoolExecutor(2 * len(TAKEN)) as pool:
        places = {place: started(pool, place, at) for at, place in enumerate(TAKEN)}
    wrong = {place: found for place, one in places.items() if (found := list(faults(one)))}
    assert wrong == {}


def faults(place: Place) -> Iterator[str]:
    """What differs between the job plain and watched, and what was not recorded."""
    plain, watched = place.plain.result(), place.watched.result()
    if (plain.code, plain.stdout.splitlines()[-1:]) != (0, ["profiled 0 new [] called []"]):
        yield f"the plain job ended with {plain.code}: {plain.stdout} {plain.stderr}"
    if (watched.code, watched.stdout, watched.stderr) != (plain.code, plain.stdout, plain.stderr):
        yield f"the watched job ended with {watched.code}: {watched.stdout} {watched.stderr}"
    described = json.loads((watched.folder / "rank0.run.json").read_text())
    if described["not_recorded"]:
        yield f"not recorded: {described['not_recorded']}"
    if described["steps"] < FEWEST_STEPS:
        yield f"{described['steps']} steps were seen"
    if not (watched.folder / "rank0.trace.json.gz").exists():
        yield "there is no trace"
