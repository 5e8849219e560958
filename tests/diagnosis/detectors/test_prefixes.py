"""Sequences that are computed again for each place appended fire compute.redundant-work; other lengths do not."""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import A100, Job, is_worth, shaped

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


VOCABULARY: Final = 1_000


def looks_up(job: Job, places: int) -> None:
    works(job, "aten::embedding", 1_000, **{"Input Dims": [[VOCABULARY, 64], [1, places], [], [], []]})


@pytest.mark.parametrize("pick", ["aten::argmax", "aten::multinomial"])
@pytest.mark.parametrize(
    ("picked_from", "told"),
    [
        ([1, VOCABULARY], True),
        ([1, 2], False),  # a class of the sentence, and no token
        ([PROMPT, VOCABULARY], False),  # each place, as to see how many are right
    ],
)
def test_a_token_that_is_picked_after_each_pass_shows_that_it_is_appended(
    pick: str, picked_from: list[int], told: bool
) -> None:
    """Older recordings hold no sizes of lists, so that of `cat`."""
    job = Job()
    for _ in job.steps(6):
        for token in range(3):
            looks_up(job, PROMPT + token)
            computes(job, PROMPT + token)
            works(job, pick, 1_000, **{"Input Dims": [picked_from, [], []]})
            works(job, "aten::cat", 1_000, **{"Input Dims": [[], []]})
    assert ("compute.redundant-work" in found_in(job.built)) == told


def test_on_a_device_the_weights_are_read_for_each_token() -> None:
    """A product of 512 rows takes ten times as long as reading its matrix; about a tenth is left for one token."""
    job, depth = Job(A100), 8_192
    read_ns = depth * depth * 2 / 2.039e12 * 1e9
    for _ in job.steps(6):
        for token in range(4):
            rows = 512 + token
            more = shaped([rows, depth], [depth, depth], dtype="c10::Half")
            job.operator("aten::mm", "ampere_fp16_s16816gemm_fp16_128x128_ldg8", round(10 * read_ns), **more)
            appends(job, rows)
            job.wait()
    finding = found_in(job.built)["compute.redundant-work"]
    assert finding.gain is not None
    # three of four passes are left with a tenth to an eighth, and the host with its calls
    assert 2.4 < finding.gain.expected < 1 / (0.25 + 0.75 / 10)
    assert finding.gain.floor < 2.9
