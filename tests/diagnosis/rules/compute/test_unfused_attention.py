"""compute.unfused-attention: scores that products write and a softmax reads fire it;
other softmaxes and fused ones do not.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import A100, MI300X, Job, is_worth, shaped

from whystall.testing import TraceBuilder, trace

HEADS: Final = 128  # 8 samples of 16
ROWS: Final = 1024
WIDTH: Final = 64
SCORES: Final = [HEADS, ROWS, ROWS]
QUERIES: Final = [HEADS, ROWS, WIDTH]
PASS_NS: Final = round(2 * 2 * HEADS * ROWS * ROWS / (0.85 * 2039))  # reads and writes the scores in 16 bits
PRODUCT_NS: Final = round(2 * HEADS * ROWS * ROWS * WIDTH / (0.7 * 312e3))  # at 70 % of the A100's peak
PERCEPTRON_NS: Final = 1_000_000
GEMM: Final = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
SOFTMAX: Final = (
    "void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 10, false, false>"
)
ATEN: Final = "void at::native::elementwise_kernel<128, 4, at::native::masked_fill_kernel>"


def model(
    *passes: tuple[str, str],
    size: int = ROWS,
    device: dict[str, Any] = A100,
    api: str = "cuda",
    gemm: str = GEMM,
    product_ns: int = PRODUCT_NS,
) -> Job:
    """Eight steps of a perceptron of 1 ms, and of attention whose scores some operators pass over."""
    job = Job(device, api=api)
    scores, queries = [HEADS, size, size], [HEADS, size, WIDTH]
    for _ in job.steps(8):
        job.operator("aten::mm", gemm, PERCEPTRON_NS, **shaped([8192, 4096], [4096, 8192], dtype="c10::BFloat16"))
        job.operator("aten::bmm", gemm, product_ns, **shaped(queries, [HEADS, WIDTH, size], dtype="c10::BFloat16"))
        for name, kernel in passes:
            job.operator(name, kernel, PASS_NS, **shaped(scores, dtype="c10::BFloat16"))
        job.operator("aten::bmm", gemm, product_ns, **shaped(scores, queries, dtype="c10::BFloat16"))
        job.wait()
    return job


@pytest.mark.parametrize(
    ("softmax", "kernel", "device", "api", "gemm"),
    [
        ("aten::_softmax", SOFTMAX, A100, "cuda", GEMM),
        ("aten::_safe_softmax", "void at::native::softmax_kernel_of_2_15(bfloat16*)", A100, "cuda", GEMM),
        (
            "aten::_softmax",
            "_ZN2at6native12_GLOBAL__N_119cunn_SoftMaxForwardILi4EN3c108BFloat16EfS4_EEvPT2_PKT0_i",
            MI300X,
            "hip",
            "Cijk_Alik_Bljk_BBS_BH_MT256x128x64_MI16x16x1_SN_LDSB1",
        ),
    ],
)
def test_passes_over_the_scores_are_worth_their_time(
    softmax: str, kernel: str, device: dict[str, Any], api: str, gemm: str
) -> None:
    passes = (("aten::mul", ATEN), ("aten::masked_fill_", ATEN), (softmax, kernel))
    product_ns = PRODUCT_NS if device is A100 else round(PRODUCT_NS * 312 / 1307.4)  # as fast as good ones get
    job = model(*passes, device=device, api=api, gemm=gemm, product_ns=product_ns)
    finding = found_in(job.built)["compute.unfused-attention"]
    is_worth(finding, job.step_ns / (job.step_ns - 3 * PASS_NS))
    assert finding.severity == "critical"


WITHOUT_SIZES: Final = ("Input Dims", "Input type")


def without_sizes(job: Job) -> TraceBuilder:
    for event in job.built.events:
        for key in WITHOUT_SIZES:
            event.get("args", {}).pop(key, None)
    return job.built


@pytest.mark.parametrize(
    ("passes", "counted"),
    [
        ((("aten::mul", ATEN), ("aten::masked_fill_", ATEN), ("aten::_softmax", SOFTMAX)), 3),
        ((("aten::_softmax", SOFTMAX), ("aten::native_dropout", ATEN)), 2),
        ((("aten::mul", ATEN), ("aten::exp", ATEN)), 0),  # no softmax
        ((("aten::_softmax", SOFTMAX), ("aten::sum", ATEN), ("aten::div", ATEN)), 0),  # slot attention
        ((("aten::_softmax", SOFTMAX), ("aten::mm", GEMM)), 0),  # a softmax over words or experts
        ((("aten::mul", ATEN), ("aten::_softmax", SOFTMAX), *(("aten::add", ATEN),) * 6), 0),  # too many operators
    ],
)
def test_without_sizes_the_order_of_operators_shows_the_passes(
    passes: tuple[tuple[str, str], ...], counted: int
) -> None:
    job = model(*passes)
    finding = found_in(without_sizes(job)).get("compute.unfused-attention")
    assert (finding is not None) == (counted > 0)
    if finding is not None:
        is_worth(finding, job.step_ns / (job.step_ns - counted * PASS_NS))


def test_short_sequences_have_scores_too() -> None:
    assert "compute.unfused-attention" in found_in(model(("aten::_softmax", SOFTMAX), size=128).built)


@pytest.mark.parametrize("size", [32, 4])
def test_windows_of_a_few_tokens_have_no_scores_to_speak_of(size: int) -> None:
    assert "compute.unfused-attention" not in found_in(model(("aten::_softmax", SOFTMAX), size=size).built)


def test_fused_attention_is_none() -> None:
    job = Job(A100)
    for _ in job.steps(8):
        job.operator("aten::mm", GEMM, PERCEPTRON_NS, **shaped([8192, 4096], [4096, 8192], dtype="c10::BFloat16"))
        heads = [8, 16, ROWS, WIDTH]
        job.operator(
            "aten::_scaled_dot_product_flash_attention",
            "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>",
            2 * PRODUCT_NS,
            **shaped(heads, heads, heads, dtype="c10::BFloat16"),
        )
        job.wait()
    assert "compute.unfused-attention" not in found_in(job.built)


@pytest.mark.parametrize("size", [[8192, 32000], [8, 1024, 32000], [8, 1024, 64]])
def test_a_softmax_over_words_or_experts_is_no_attention(size: list[int]) -> None:
    """No batched product writes what it goes over: logits of a loss or of a router come from an ordinary product."""
    job = Job(A100)
    for _ in job.steps(8):
        job.operator("aten::mm", GEMM, PERCEPTRON_NS, **shaped([8192, 4096], [4096, size[-1]], dtype="c10::BFloat16"))
        for name in ("aten::mul", "aten::_softmax", "aten::add"):
            job.operator(name, SOFTMAX, PASS_NS, **shaped(size, dtype="c10::BFloat16"))
        job.wait()
    assert "compute.unfused-attention" not in found_in(job.built)


def on_a_cpu(*, fused: bool, rows: int = 1024, back: bool = False) -> TraceBuilder:
    """Eight steps of 4 ms: half of it products, half passes over the scores, or all in one operator.

    ``back``: and 4 ms of the backward pass, of which the engine takes one to free the scores.
    """
    built = trace()
    queries, scores = [1, rows, WIDTH], [1, rows, rows]
    lasts = 8_000_000 if back else 4_000_000
    for number in range(8):
        at = number * lasts
        built.step(number, at=at, lasts=lasts)
        if fused:
            name = "aten::_scaled_dot_product_flash_attention_for_cpu"
            built.operator(name, at=at, lasts=lasts, **shaped(queries, queries, queries))
            continue
        built.operator("aten::bmm", at=at, lasts=1_000_000, **shaped(queries, [1, WIDTH, rows]))
        built.operator("aten::masked_fill", at=at + 1_000_000, lasts=1_000_000, **shaped(scores))
        built.operator("aten::_softmax", at=at + 2_000_000, lasts=1_000_000, **shaped(scores))
        built.operator("aten::bmm", at=at + 3_000_000, lasts=1_000_000, **shaped(scores, queries))
        if back:
            name = "autograd::engine::evaluate_function: SoftmaxBackward0"
            built.operator(name, at=at + 4_000_000, lasts=2_000_000)
            built.operator("aten::_softmax_backward_data", at=at + 4_000_000, lasts=1_000_000, **shaped(scores, scores))
            built.operator("aten::bmm", at=at + 6_000_000, lasts=2_000_000, **shaped([1, rows, rows], queries))
    return built


def test_on_a_cpu_a_fifth_of_the_passes_over_small_scores_stays() -> None:
    is_worth(found_in(on_a_cpu(fused=False))["compute.unfused-attention"], 4 / (4 - 2 * 0.8))
    assert "compute.unfused-attention" not in found_in(on_a_cpu(fused=True))


@pytest.mark.parametrize(("back", "step", "left"), [(False, 4, 2 * 0.58), (True, 8, 4 * 0.88 + 0.1)])
def test_on_a_cpu_large_scores_cost_more_than_their_passes(step: float, left: float, *, back: bool) -> None:
    """64 MiB of scores: fused attention took 0.58 of the products' time forward, and 0.88 with the backward pass."""
    found = found_in(on_a_cpu(fused=False, rows=4096, back=back))["compute.unfused-attention"]
    is_worth(found, step / left)


@pytest.mark.parametrize(("mask", "arguments"), [("aten::masked_fill_", ", attn_mask=mask"), ("aten::mul", "")])
def test_the_remedy_takes_a_mask_where_the_job_has_one(mask: str, arguments: str) -> None:
    finding = found_in(model((mask, ATEN), ("aten::_softmax", SOFTMAX)).built)["compute.unfused-attention"]
    assert finding.remedy is not None
    assert finding.remedy.patch == f"F.scaled_dot_product_attention(q, k, v{arguments})"
    assert ("is_causal" in finding.remedy.text) is bool(arguments)


def falls_back(*inside: str, launches: bool = False, beside: int = 1) -> TraceBuilder:
    """Eight steps of products of 1 ms, and of the written-out form that torch chose, each operator 1 ms."""
    built = trace()
    at = 0
    for number in range(8):
        begin = at
        names = [*["aten::mm"] * beside, *inside]
        each = 20_000 if launches else 1_000_000
        built.operator("aten::scaled_dot_product_attention", at=at + beside * each, lasts=len(inside) * each)
        built.operator("aten::_scaled_dot_product_attention_math", at=at + beside * each, lasts=len(inside) * each)
        for place, name in enumerate(names):
            built.operator(name, at=at, lasts=each - 1_000, **shaped([8, 128, 128], [8, 128, 64]))
            if launches:
                runs_at = begin + 6_000 + place * 1_000_000
                built.launch("kernel", at=at + 1_000, call_lasts=4_000, runs_at=runs_at, lasts=990_000)
            at += each
        if launches:
            until = begin + len(names) * 1_000_000
            built.runtime("cudaDeviceSynchronize", at=at, lasts=until - at)
            at = until + 1_000
        built.step(number, at=begin, lasts=at - begin)
    return built


@pytest.mark.parametrize(
    ("inside", "launches", "says"),
    [
        (("aten::bmm", "aten::_softmax", "aten::dropout", "aten::bmm"), False, "without dropout"),
        (("aten::bmm", "aten::_softmax", "aten::bmm"), False, "half precision"),
        (("aten::bmm", "aten::_softmax", "aten::dropout", "aten::bmm"), True, "half precision"),
    ],
)
def test_who_calls_sdpa_already_is_not_told_to_call_it(inside: tuple[str, ...], says: str, *, launches: bool) -> None:
    finding = found_in(falls_back(*inside, launches=launches))["compute.unfused-attention"]
    assert "falls back" in finding.title
    assert finding.remedy is not None
    assert "Scaled dot product attention is called" in finding.remedy.text
    assert says in finding.remedy.text
    assert "F.scaled_dot" not in (finding.remedy.patch or "")


def test_for_a_tenth_of_a_step_nobody_trains_another_model() -> None:
    """Dropout of 2 ms in 9 is not named, of 2 in 5 it is; what falls back for other reasons is in any case."""
    dropout = ("aten::bmm", "aten::_softmax", "aten::dropout", "aten::bmm")
    plain = ("aten::bmm", "aten::_softmax", "aten::bmm")
    assert "compute.unfused-attention" in found_in(falls_back(*dropout))
    assert "compute.unfused-attention" in found_in(falls_back(*plain, beside=5))
    assert "compute.unfused-attention" not in found_in(falls_back(*dropout, beside=5))
