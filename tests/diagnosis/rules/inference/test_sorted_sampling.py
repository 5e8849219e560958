"""inference.sorted-sampling: scores of a vocabulary that are sorted to draw tokens; the truth is by bandwidth."""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import A100, Job, is_worth, shaped

SEQUENCES, WORDS = 128, 100_000
PASS_NS: Final = SEQUENCES * WORDS * 4 / (0.85 * 2.039e12) * 1e9  # an A100's bandwidth, as far as copies reach it


PASSES: Final = ("aten::softmax", "aten::cumsum", "aten::rsub", "aten::le", "aten::masked_fill_", "aten::scatter")


def decode(shape: list[int], *, sort: str = "aten::sort", passes: tuple[str, ...] = PASSES) -> Job:
    """Eight steps of a product that makes scores, a sort of 1.5 ms and six passes of 0.1 ms over them."""
    job = Job(A100)
    for _ in job.steps(8):
        job.operator("aten::mm", "gemm", 10_000_000, **shaped([SEQUENCES, 64], [64, shape[-1]]))
        job.operator(sort, "radixSortKVInPlace", 1_500_000, **shaped(shape, [], [], []))
        for name in passes:
            job.operator(name, "elementwise", 100_000, **shaped(shape, shape))
        job.wait()
    return job


def test_a_sort_of_all_scores_is_worth_what_a_kernel_without_it_saves() -> None:
    job = decode([SEQUENCES, WORDS])
    finding = found_in(job.built)["inference.sorted-sampling"]
    is_worth(finding, job.step_ns / (job.step_ns - 2_100_000 + 5 * PASS_NS), within=0.02)
    assert "128 x 100,000" in {row.value for row in finding.evidence}


@pytest.mark.parametrize(
    ("shape", "more"),
    [
        ([SEQUENCES, 512], {}),  # a list that is ranked, no vocabulary
        ([SEQUENCES, WORDS], {"sort": "aten::topk"}),  # takes a part of them
        ([SEQUENCES, WORDS], {"passes": ("aten::softmax", *PASSES[2:])}),  # ranked by probability, and nothing is drawn
    ],
)
def test_what_is_no_sampling_by_a_sort_is_none(shape: list[int], more: dict[str, Any]) -> None:
    assert "inference.sorted-sampling" not in found_in(decode(shape, **more).built)


def test_where_a_model_learns_nothing_is_sampled() -> None:
    job = decode([SEQUENCES, WORDS])
    job.built.operator(
        "MmBackward0", at=1_000_000, lasts=5_000, thread=77, **{"Fwd thread id": 1, "Sequence number": 3}
    )
    assert "inference.sorted-sampling" not in found_in(job.built)
