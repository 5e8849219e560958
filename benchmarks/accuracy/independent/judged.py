# ruff: noqa: S311 - noise needs no cryptography
"""Writes the traces of all cases and marks what whystall says of them."""

from __future__ import annotations

import random
import zlib
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.accuracy.expectation import Expectation
from benchmarks.accuracy.score import Mark, mark
from benchmarks.accuracy.verdicts import analyze

from . import cases_host, cases_kernels, cases_queue, cases_ranks, cases_serving, cases_shard
from .emit import together, write
from .engine import simulate
from .loops import CASES, Case

LISTED = (cases_host, cases_kernels, cases_serving, cases_ranks, cases_shard, cases_queue)
"""Importing them fills `CASES`."""


def judge(out: Path, *, seed: int, only: str = "", jobs: int = 2) -> dict[str, list[Mark]]:
    """The marks of the cases, and of those whose cause has no rule, if there are any.

    The seed draws noise, clock offsets and some sizes.
    """
    wanted = [number for number, case in enumerate(CASES) if only in case.name]
    with ProcessPoolExecutor(jobs) as pool:
        marks = dict(zip(wanted, pool.map(partial(_mark, out, seed), wanted), strict=True))
    ruled = [mark for number, mark in marks.items() if CASES[number].kind != "no rule"]
    others = [mark for number, mark in marks.items() if CASES[number].kind == "no rule"]
    parts = {f"independent (seed {seed})": ruled, "independent, taken to have no rule": others}
    return {name: found for name, found in parts.items() if found}


def _mark(out: Path, seed: int, number: int) -> Mark:
    case = CASES[number]
    files, gain = traces(case, seed, out)
    nothing = not case.accept or case.kind == "limit"
    expectation = Expectation(case.name, {} if nothing else {case.accept[0]: gain}, case.accept[1:])
    return mark(expectation, analyze(files))


def traces(case: Case, seed: int, out: Path) -> tuple[list[Path], float]:
    """Writes the case's traces; gives the files and the true gain of removing its cause."""
    lengths = []
    files: list[Path] = []
    for on in (True, False):
        drawn = random.Random(seed * 7919 + zlib.crc32(case.name.encode()))
        made = simulate(case.build(drawn, seed * 131 + zlib.crc32(case.name.encode()) % 1000, on))
        last = len(made[0].marks) - 1
        lengths.append(sum(rank.period(case.first, last) for rank in made) / len(made))
        for rank in made if on else ():
            files.append(out / f"{case.name}-rank{rank.prog.rank}.json.gz")
            offset = random.Random(f"{seed} {case.name} {rank.prog.rank}").uniform(-4000, 4000)
            write(rank, files[-1], 0.0 if case.together else offset, case.lost)
    if case.together:
        files = [together(files, out / f"{case.name}.json.gz")]
    return files[: case.files or None], lengths[0] / lengths[1]
