"""Simulated jobs: written once into a folder, analysed by the command line, judged by their truth."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.accuracy import ablate
from benchmarks.accuracy.expectation import from_folder
from benchmarks.accuracy.score import Ablation, Mark, ablation, mark
from benchmarks.accuracy.simulator.__main__ import write_all
from benchmarks.accuracy.simulator.registry import all_cases
from benchmarks.accuracy.verdicts import analyze


def names(*, only: str, quick: bool) -> list[str]:
    """The cases of the registry that are wanted."""
    return [case.name for case in all_cases() if only in case.name and (case.quick or not quick)]


def folders(out: Path, wanted: Sequence[str], *, jobs: int) -> list[Path]:
    """The folders of cases; those that are not there yet are written."""
    write_all([name for name in wanted if not (out / name / "truth.json").exists()], out, jobs)
    return [out / name for name in wanted]


def judge(found: Sequence[Path], *, jobs: int) -> list[Mark]:
    """A mark for every folder."""
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(_mark, found))


def _mark(folder: Path) -> Mark:
    return mark(from_folder(folder), analyze([folder]))


def judge_without(found: Sequence[Path], *, jobs: int) -> list[Ablation]:
    """For every folder and every signal that it has: what is said without."""
    with ThreadPoolExecutor(jobs) as pool:
        return [each for made in pool.map(partial(_without), found) for each in made]


def _without(folder: Path) -> Iterable[Ablation]:
    expectation, before = from_folder(folder), analyze([folder])
    made = []
    with tempfile.TemporaryDirectory() as scratch:
        for number, removed in enumerate(ablate.ALL):
            paths = ablate.write_without(folder, removed, Path(scratch) / str(number))
            if paths:
                made.append(ablation(expectation, removed, before, analyze(paths)))
    return made
