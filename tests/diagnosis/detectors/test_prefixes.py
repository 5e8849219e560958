"""Sequences that are computed again for each place appended fire compute.redundant-work; other lengths do not."""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import Job, is_worth, shaped

PROMPT: Final = 200
TOKENS: Final = 5
ROW_NS: Final = 20_000


def works(job: Job, name: str, lasts: int, **more: Any) -> None:
    with job.inside(name, **more):
        job.python(lasts)


def computes(job: Job, rows: int, batch: int = 1) -> None:
    """Two layers over all rows."""
    for _ in range(2):
        works(job, "aten::addmm", rows * ROW_NS, **shaped([64], [rows * batch, 64], [64, 64]))


def appends(job: Job, places: int, batch: int = 1) -> None:
    works(job, "aten::cat", 1_000, **{"Input Dims": [[[batch, places], [batch, 1]], []]})


@pytest.mark.parametrize("batch", [1, 4])
def test_a_story_without_a_cache_is_worth_its_prompt(batch: int) -> None:
    job = Job()
    for _ in job.steps(6):
        for token in range(TOKENS):
            computes(job, PROMPT + token, batch)
            appends(job, PROMPT + token, batch)
    finding = found_in(job.built)["compute.redundant-work"]
    assert finding.remedy is not None
    assert "cache" in finding.remedy.text
    is_worth(finding, TOKENS * (PROMPT + 2) / (PROMPT + TOKENS), within=0.1)


def test_a_story_with_a_cache_computes_nothing_again() -> None:
    job = Job()
    for _ in job.steps(6):
        computes(job, PROMPT)
        for token in range(TOKENS):
            computes(job, 1)
            appends(job, PROMPT + token)  # to the keys and values
    assert "compute.redundant-work" not in found_in(job.built)


@pytest.mark.parametrize("lengths", [(200, 201, 202, 240, 241), (200, 202, 203, 204, 190), (60, 60, 61, 61, 62)])
def test_sentences_of_any_length_are_other_sentences(lengths: tuple[int, ...]) -> None:
    job = Job()
    for _ in job.steps(6):
        for length in lengths:
            computes(job, length)
    assert "compute.redundant-work" not in found_in(job.built)
