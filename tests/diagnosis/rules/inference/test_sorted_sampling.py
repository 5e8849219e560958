"""inference.sorted-sampling: scores of a vocabulary that are sorted to draw tokens; the truth is by bandwidth."""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import A100, MI300X, Job, is_worth, shaped

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


SCORES: Final = "void at::native::vectorized_elementwise_kernel<4, at::native::DivFunctor<float>>"
LONG_SORT: Final = "void at_cuda_detail::cub::DeviceSegmentedRadixSortKernel<at_cuda_detail::cub::Policy900, false>"
HIP_SORT: Final = "void rocprim::ROCPRIM_400000_NS::detail::segmented_radix_sort_kernel<rocprim::default_config, true>"
SHORT_SORT: Final = "void at::native::radixSortKVInPlace<-2, -1, 128, 32, float, long>"
SOFTMAX: Final = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float>"
SCAN: Final = "void at::native::tensor_kernel_scan_innermost_dim<float, std::plus<float>>"
BARE_PASS_NS: Final = 55_000
NOISE: Final = ("aten::exponential_", "aten::div_", "aten::argmax")


def sampled(
    *,
    sort: str = LONG_SORT,
    softmax_first: bool = False,
    sums: bool = True,
    draw: tuple[str, ...] = NOISE,
    product: bool = False,
    device: dict[str, Any] = A100,
) -> Job:
    """Eight steps of a model that a graph replays, and of sampling behind a sort, without recorded sizes."""
    job = Job(device, api="hip" if device is MI300X else "cuda")
    for _ in job.steps(8):
        job.launch("ampere_bf16_s16816gemm_bf16_128x128", 10_000_000, call="GraphLaunch")
        if softmax_first:
            job.operator("aten::_softmax", SOFTMAX, 3 * BARE_PASS_NS)
        with job.inside("aten::sort"):
            job.operator("aten::sort", sort, 3_000_000)
        if not softmax_first:
            job.operator("aten::_softmax", SOFTMAX, 3 * BARE_PASS_NS)
        if sums:
            job.operator("aten::cumsum", SCAN, 190_000)
        if product:
            job.operator("aten::mm", "ampere_bf16_s16816gemm_bf16_128x128", 200_000)
        for name in ("aten::le", "aten::masked_fill_", "aten::scatter_", *draw):
            job.operator(name, SCORES, 100_000)
        job.wait()
    return job


@pytest.mark.parametrize("device", [A100, MI300X])
@pytest.mark.parametrize("softmax_first", [False, True])
@pytest.mark.parametrize("draw", [NOISE, ("aten::multinomial",)])
def test_without_sizes_the_kernels_tell_the_same(
    device: dict[str, Any], draw: tuple[str, ...], *, softmax_first: bool
) -> None:
    sort = HIP_SORT if device is MI300X else LONG_SORT
    job = sampled(device=device, sort=sort, draw=draw, softmax_first=softmax_first)
    finding = found_in(job.built)["inference.sorted-sampling"]
    softmax = 0 if softmax_first else 3 * BARE_PASS_NS
    spent = 3_000_000 + softmax + 190_000 + (3 + len(draw)) * 100_000
    is_worth(finding, job.step_ns / (job.step_ns - spent + 5 * BARE_PASS_NS), within=0.02)
    assert finding.confidence < 0.85
    assert finding.missing_signals == ["operator shapes"]


@pytest.mark.parametrize(
    "more",
    [
        {"sort": SHORT_SORT},  # 4,096 scores in a row, or fewer
        {"sums": False},  # ranked, as boxes are
        {"draw": ()},  # nothing is drawn: tokens of experts, rows of a table
        {"draw": ("aten::argmax",)},  # the best one is taken
        {"product": True},  # experts: the draw is a later layer's
    ],
)
def test_without_sizes_other_sorts_are_no_sampling(more: dict[str, Any]) -> None:
    assert "inference.sorted-sampling" not in found_in(sampled(**more).built)


def test_without_sizes_experts_before_a_cheap_draw_are_no_sampling() -> None:
    """A router's softmax and the sort of its tokens, the experts' products, then a draw from the best scores."""
    job = Job(A100)
    for _ in job.steps(8):
        for _ in range(2):
            job.operator("aten::_softmax", SOFTMAX, 30_000)
            job.operator("aten::topk", "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>", 30_000)
            job.operator("aten::argsort", LONG_SORT, 1_000_000)
            job.operator("aten::cumsum", SCAN, 30_000)
            job.launch("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<GroupProblemShape>>", 900_000)
        job.operator("aten::topk", "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>", 100_000)
        job.operator("aten::_softmax", SOFTMAX, 30_000)
        job.operator("aten::cumsum", SCAN, 30_000)
        job.operator("aten::multinomial", SCORES, 30_000)
        job.wait()
    assert "inference.sorted-sampling" not in found_in(job.built)


def test_without_sizes_a_job_that_learns_samples_nothing() -> None:
    job = sampled()
    job.built.operator(
        "MmBackward0", at=1_000_000, lasts=5_000, thread=77, **{"Fwd thread id": 1, "Sequence number": 3}
    )
    assert "inference.sorted-sampling" not in found_in(job.built)
