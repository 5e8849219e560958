"""compute.copied-buffer: concatenations that add little to a large tensor fire it; others do not."""

from __future__ import annotations

from typing import Any

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import Job, is_worth

CAT_NS = 4_000_000
OTHER_NS = 4_000_000
QUEUE = [65_536, 128]


def queue(parts: list[list[int]], *, copies: int = 0, in_steps: int = 8) -> Job:
    """Eight steps of a concatenation, copies of what it makes, and other work."""
    job = Job()
    for step in job.steps(8):
        if step < in_steps:
            with job.inside("aten::cat", **{"Input Dims": [parts, []], "Input type": ["TensorList", "Scalar"]}):  # type: ignore[arg-type]
                job.python(CAT_NS)
        for _ in range(copies):
            with job.inside("aten::clone", **{"Input Dims": [[65_600, 128], []], "Input type": ["float", ""]}):  # type: ignore[arg-type]
                job.python(CAT_NS)
        with job.inside("aten::relu", **{"Input Dims": [[64, 128]], "Input type": ["float"]}):  # type: ignore[arg-type]
            job.python(OTHER_NS)
    return job


@pytest.mark.parametrize("copies", [0, 1])
def test_what_is_appended_alone_is_left(copies: int) -> None:
    finding = found_in(queue([QUEUE, [64, 128]], copies=copies).built)["compute.copied-buffer"]
    is_worth(finding, (OTHER_NS + (1 + copies) * CAT_NS) / OTHER_NS)


def test_attention_reads_a_part_of_a_longer_buffer_more_slowly_than_what_was_joined() -> None:
    """By hand 1.07 to 1.20 in three pairs of a generation whose caches took 27 % of a step."""
    finding = found_in(queue([[32, 8, 512, 64], [32, 8, 1, 64]]).built)["compute.copied-buffer"]
    assert finding.gain is not None
    assert finding.gain.floor < 1.05
    assert 1.15 < finding.gain.expected < 1.4
    assert finding.gain.ceiling > 1.9


def test_giving_back_what_was_there_is_part_of_it() -> None:
    """The pause after it, until the next operator."""
    job = Job()
    appended: dict[str, Any] = {"Input Dims": [[QUEUE, [64, 128]], []], "Input type": ["TensorList", "Scalar"]}
    for _ in job.steps(8):
        with job.inside("aten::cat", **appended):
            job.python(CAT_NS)
        job.python(CAT_NS // 2)
        with job.inside("aten::relu", **{"Input Dims": [[64, 128]], "Input type": ["float"]}):  # type: ignore[arg-type]
            job.python(OTHER_NS)
    is_worth(found_in(job.built)["compute.copied-buffer"], (OTHER_NS + 1.5 * CAT_NS) / OTHER_NS)


@pytest.mark.parametrize(
    "job",
    [
        queue([QUEUE, QUEUE]),  # two halves
        queue([[100, 128], [1, 128]]),  # small
        queue([QUEUE, [64, 128]], in_steps=2),  # now and then
        queue([QUEUE]),
    ],
)
def test_others_are_not(job: Job) -> None:
    assert "compute.copied-buffer" not in found_in(job.built)
