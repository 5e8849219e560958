"""compute.masked-attention: attention of the sizes whose masks were looked at, worth what they hide, and no other."""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import A100, V100, Job, is_worth

from whystall.diagnosis.finding import Finding
from whystall.diagnosis.run_facts import RunFacts
from whystall.run_folder.observations import AttendedScores, Observations

ID = "compute.masked-attention"
ATTENTION_NS = 8_000_000
OTHER_NS = 4_000_000
FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"

BATCH, HEADS, TOKENS, HEAD = 1, 32, 4096, 128
QUERY: Final = [BATCH, HEADS, TOKENS, HEAD]
MASK: Final = [BATCH, HEADS, TOKENS, TOKENS]
FLOPS: Final = 4 * BATCH * HEADS * TOKENS**2 * HEAD  # two products of 2 * m * n * k
SLOW_NS: Final = round(FLOPS / (0.25 * 312e12) * 1e9)
FLASH_CAUSAL_NS: Final = round(0.5 * FLOPS / (0.55 * 312e12) * 1e9)
BY_QUERY: Final = [TOKENS * TOKENS, 0, TOKENS, 1]
BY_KEY: Final = [TOKENS, 0, 0, 1]


def call(job: Job, name: str, sizes: list[list[int]], lasts_ns: int) -> None:
    with job.inside(name, **{"Input Dims": sizes, "Input type": ["float"] * len(sizes)}):  # type: ignore[arg-type]
        job.python(lasts_ns)


def fused(queries: int, keys: int, *, backward: bool = False) -> Job:
    """Eight steps of attention and other work."""
    job = Job()
    query, key = [2, 8, queries, 64], [2, 8, keys, 64]
    for _ in job.steps(8):
        if backward:
            call(job, f"{FLASH}_backward", [query, query, key, key, query, [2, 8, queries]], ATTENTION_NS)
        else:
            call(job, FLASH, [query, key, key], ATTENTION_NS)
        call(job, "aten::mm", [[1_000, 64], [64, 64]], OTHER_NS)
    return job


def written(queries: int, keys: int) -> Job:
    job = Job()
    query, key, scores = [16, queries, 64], [16, keys, 64], [16, queries, keys]
    for _ in job.steps(8):
        call(job, "aten::bmm", [query, [16, 64, keys]], ATTENTION_NS // 4)
        call(job, "aten::masked_fill", [scores, [queries, keys], []], ATTENTION_NS // 4)
        call(job, "aten::_softmax", [scores, [], []], ATTENTION_NS // 4)
        call(job, "aten::bmm", [scores, key], ATTENTION_NS // 4)
        call(job, "aten::mm", [[1_000, 64], [64, 64]], OTHER_NS)
    return job


def scores(queries: int, keys: int, kept: float = 1.0, tiles: float = 1.0, **forms: bool) -> AttendedScores:
    return AttendedScores(
        queries, keys, kept, tiles, causal=forms.get("causal", False), sliding=forms.get("sliding", False)
    )


def found(job: Job, seen: AttendedScores) -> Finding | None:
    return found_in(job.built, facts=RunFacts(observed={0: Observations(attended=(seen,))})).get(ID)


def told(job: Job, seen: AttendedScores) -> Finding:
    finding = found(job, seen)
    assert finding is not None
    return finding


def worth(left: float) -> float:
    return (ATTENTION_NS + OTHER_NS) / (left * ATTENTION_NS + OTHER_NS)


@pytest.mark.parametrize("job", [fused(1, 2_048), written(1, 2_048)])
def test_keys_that_no_query_sees_are_worth_their_share(job: Job) -> None:
    finding = told(job, scores(1, 2_048, kept=0.05))
    is_worth(finding, worth(0.05))
    assert finding.remedy is not None
    assert "written so far" in finding.remedy.text


def test_filling_the_cache_goes_with_them() -> None:
    job = Job()
    for _ in job.steps(8):
        call(job, "aten::fill_", [[2, 8, 2_048, 64], []], OTHER_NS)
        call(job, FLASH, [[2, 8, 1, 64], [2, 8, 2_048, 64], [2, 8, 2_048, 64]], ATTENTION_NS)
        call(job, "aten::mm", [[1_000, 64], [64, 64]], OTHER_NS)
    finding = told(job, scores(1, 2_048, kept=0.05))
    is_worth(finding, (ATTENTION_NS + 2 * OTHER_NS) / (0.05 * (ATTENTION_NS + OTHER_NS) + OTHER_NS))


@pytest.mark.parametrize("job", [fused(1_024, 1_024), fused(1_024, 1_024, backward=True), written(1_024, 1_024)])
def test_groups_and_windows_are_worth_what_the_benchmark_measured(job: Job) -> None:
    groups = told(job, scores(1_024, 1_024, tiles=0.125))
    is_worth(groups, worth(0.125 * 1.3))
    window = told(job, scores(1_024, 1_024, tiles=0.125, sliding=True))
    is_worth(window, worth(0.125 * 2.5))


def test_a_causal_mask_is_told_where_saying_so_leaves_blocks_out() -> None:
    finding = told(fused(2_048, 2_048), scores(2_048, 2_048, tiles=0.52, causal=True, sliding=True))
    is_worth(finding, worth(0.625))
    assert finding.remedy is not None
    assert "comes later" in finding.remedy.text


@pytest.mark.parametrize(
    ("job", "seen"),
    [
        pytest.param(fused(512, 512), scores(512, 512, tiles=0.52, causal=True), id="causal, of one block"),
        pytest.param(written(2_048, 2_048), scores(2_048, 2_048, tiles=0.52, causal=True), id="causal, written out"),
        pytest.param(fused(512, 512), scores(512, 512, kept=0.2), id="padding"),
        pytest.param(fused(512, 512), scores(512, 512, tiles=0.15, sliding=True), id="too few keys for windows"),
        pytest.param(fused(1, 2_048), scores(1, 2_048, kept=0.9), id="a full cache"),
        pytest.param(fused(1, 2_048), scores(1, 1_024, kept=0.05), id="another size"),
        pytest.param(fused(1_024, 1_024), scores(1_024, 1_024, tiles=0.8), id="nearly all seen"),
        pytest.param(fused(1_024, 1_024), scores(1_024, 1_024, tiles=0.52), id="causal, of a padded batch"),
    ],
)
def test_others_are_not(job: Job, seen: AttendedScores) -> None:
    assert found(job, seen) is None


def test_sizes_that_were_not_recorded_are_of_no_attention() -> None:
    job = Job()
    for _ in job.steps(8):
        call(job, FLASH, [], ATTENTION_NS)
        call(job, f"{FLASH}_backward", [[1], []], ATTENTION_NS)
    assert found(job, scores(1, 2_048, kept=0.05)) is None


def attention(device: dict[str, Any], mask: list[int], strides: list[int], lasts: int, dtype: str, head: int) -> Job:
    """Eight steps of a product and of attention."""
    job = Job(device)
    query = [*QUERY[:3], head]
    given: dict[str, Any] = {
        "Input Dims": [query, query, query, mask, [], [], [], []],
        "Input type": [dtype] * 3 + ([dtype] if mask else [""]) + ["Scalar"] * 4,
        "Input Strides": [[TOKENS * HEADS * head, head, HEADS * head, 1]] * 3
        + [strides if mask else [], [], [], [], []],
        "Concrete Inputs": ["", "", "", "", "False", "0.", "False", "None"],
    }
    square: Any = {"Input Dims": [[4096, 4096]] * 2, "Input type": [dtype] * 2}
    kernel = "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<...>::Params)"
    for _ in job.steps(8):
        for _ in range(4):
            job.operator("aten::mm", "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_nn", 600_000, **square)
        job.operator("aten::_scaled_dot_product_efficient_attention", kernel, lasts, **given)
        job.wait()
    return job


def test_a_mask_by_query_costs_what_flash_kernels_would_save() -> None:
    job = attention(A100, MASK, BY_QUERY, SLOW_NS, "c10::BFloat16", HEAD)
    finding = found_in(job.built)["compute.masked-attention"]
    is_worth(finding, job.step_ns / (job.step_ns - (SLOW_NS - FLASH_CAUSAL_NS)), within=0.1)
    assert finding.remedy is not None
    assert "is_causal=True" in finding.remedy.text


def test_a_mask_of_padding_hides_no_half_of_the_scores() -> None:
    job = attention(A100, MASK, BY_KEY, SLOW_NS, "c10::BFloat16", HEAD)
    finding = found_in(job.built)["compute.masked-attention"]
    is_worth(finding, job.step_ns / (job.step_ns - (SLOW_NS - 2 * FLASH_CAUSAL_NS)), within=0.1)
    assert finding.remedy is not None
    assert "same for every query" in finding.remedy.text
    assert "is_causal" not in (finding.remedy.patch or "")


@pytest.mark.parametrize(("given", "causal"), [([1, 1, 1, TOKENS], False), ([1, 1, TOKENS, TOKENS], True), ([], True)])
def test_older_recordings_show_the_mask_before_it_was_expanded(given: list[int], causal: bool) -> None:
    """They hold no strides: only the call of attention itself shows whether a mask has a row for each query."""
    job = Job(A100)
    kernel = "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<...>::Params)"
    types: dict[str, Any] = {"Input type": ["c10::BFloat16"] * 4 + ["Scalar"] * 4}
    for _ in job.steps(8):
        outer: dict[str, Any] = {"Input Dims": [QUERY, QUERY, QUERY, given, [], [], [], []], **types}
        with job.inside("aten::scaled_dot_product_attention", **outer):
            dims: dict[str, Any] = {"Input Dims": [QUERY, QUERY, QUERY, MASK, [], [], [], []]}
            job.operator("aten::_scaled_dot_product_efficient_attention", kernel, SLOW_NS, **dims, **types)
        job.wait()
    remedy = found_in(job.built)["compute.masked-attention"].remedy
    assert remedy is not None
    assert ("is_causal" in (remedy.patch or "")) == causal


@pytest.mark.parametrize(
    ("device", "mask", "lasts", "dtype", "head"),
    [
        (A100, [], SLOW_NS, "c10::BFloat16", HEAD),  # without a mask something else keeps flash kernels away
        (A100, MASK, 2 * FLASH_CAUSAL_NS, "c10::BFloat16", HEAD),  # equally fast
        (A100, MASK, SLOW_NS, "float", HEAD),  # they take 16 bits
        (A100, MASK, 2 * SLOW_NS, "c10::BFloat16", 320),  # and heads of at most 256
        (V100, MASK, SLOW_NS, "c10::Half", HEAD),  # and need a later device
    ],
)
def test_attention_that_flash_kernels_would_not_make_faster_is_none(
    device: dict[str, Any], mask: list[int], lasts: int, dtype: str, head: int
) -> None:
    job = attention(device, mask, BY_KEY, lasts, dtype, head)
    found = found_in(job.built).get("compute.masked-attention")
    assert found is None or found.severity == "info"
