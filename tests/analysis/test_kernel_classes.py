"""Kernel classes: shipped rules, the user's own before them, and rules that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

import whystall
from whystall.analysis.kernel_classes import first_match, parse_kernel_classes, shipped_kernel_classes
from whystall.analysis.trace_analysis import analyze_trace
from whystall.errors import InputError
from whystall.testing import trace

MINE = """
[[rule]]
class = "communication"
family = "mine"
pattern = '^my_exchange'

[[rule]]
class = "compute"
family = "not nccl"
pattern = 'ncclLookAlike'
"""


@pytest.mark.parametrize(
    ("name", "class_"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)", "communication"),
        ("ncclKernel_Generic", "communication"),
        ("void deep_ep::internode::dispatch<true>(int4*)", "communication"),
        ("dpsk::ep::intranode::combine", "communication"),
        ("multimem_all_reduce_kernel", "communication"),
        ("cross_device_reduce_1stage<__nv_bfloat16, 8>", "communication"),
        ("nvshmemi_proxy_quiet", "communication"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32", "compute"),
        ("void at::native::vectorized_elementwise_kernel<4, add>", "compute"),
        ("void at::native::reduce_kernel<512, 1>", "compute"),
        ("nobody_knows_this", "compute"),
    ],
)
def test_names(name: str, class_: str) -> None:
    (kernel,) = analyze_trace(trace().kernel(name, at=0, lasts=10).load()).kernels
    assert kernel.class_ == class_


def test_copies_and_sets_are_memory_whatever_their_name() -> None:
    built = trace()
    for category in ("gpu_memcpy", "gpu_memset", "Memcpy"):
        built.kernel("ncclSomething", at=0, lasts=10, category=category)
    result = analyze_trace(built.load())
    assert {(row.class_, row.family, row.count) for row in result.kernel_families} == {
        ("memory", "copy", 2),
        ("memory", "set", 1),
    }


def test_a_user_s_rules_go_first(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    built = trace().kernel("my_exchange_a2a", at=0, lasts=10).kernel("ncclLookAlike", at=20, lasts=10)
    report = whystall.analyze(built.load(), kernel_classes=path)
    assert {(row.name, row.class_, row.family) for row in report.kernels} == {
        ("my_exchange_a2a", "communication", "mine"),
        ("ncclLookAlike", "compute", "not nccl"),
    }
    assert report.devices[0].communication_ns == 10


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[[rule", "the kernel classes are not TOML"),
        ("rule = 5", "need a list of [[rule]] tables"),
        ("rule = [5]", "rule 1: class must be one of"),
        (
            "[[rule]]\nclass = 'gpu'\nfamily = 'x'\npattern = 'x'",
            "rule 1: class must be one of compute, communication, memory, not 'gpu'",
        ),
        ("[[rule]]\nclass = 'compute'\npattern = 'x'", "rule 1: family and pattern must be given as text"),
        ("[[rule]]\nclass = 'compute'\nfamily = 'x'\npattern = 5", "rule 1: family and pattern must be given as text"),
        (MINE + "[[rule]]\nclass = 'compute'\nfamily = 'x'\npattern = '('", "rule 3: '(' is no regular expression"),
    ],
)
def test_wrong_rules_are_named(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        whystall.analyze(trace().kernel("k", at=0, lasts=1).load(), kernel_classes=path)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rules_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"# \xff")
    for name in ("nothing.toml", "latin"):
        with pytest.raises(InputError, match="cannot be read"):
            whystall.analyze(trace().kernel("k", at=0, lasts=1).load(), kernel_classes=tmp_path / name)


def test_no_rules_are_no_mistake() -> None:
    assert parse_kernel_classes("") == ()


def test_only_the_beginning_of_an_endless_name_is_looked_at() -> None:
    assert first_match(shipped_kernel_classes(), "x" * 5_000_000 + "nccl") is None


@pytest.mark.parametrize("unit", ["a", "all_", "(", "nccl", "reduce", "_", "conv", "::"])
def test_no_name_takes_the_rules_long(unit: str) -> None:
    """Would not end if a pattern went back over the name again and again."""
    first_match(shipped_kernel_classes(), unit * 4096)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, silu_kernel(float)::{lambda()#1}>", "activation"),
        (
            "void at::native::elementwise_kernel<128, 4, gpu_kernel_impl<MulFunctor<float>>{lambda(int)#1}>",
            "elementwise",
        ),
        ("void multi_tensor_apply_kernel<LAMBStage1Functor<float>>", "optimizer"),
        ("lamb_update_kernel", "optimizer"),
    ],
)
def test_a_lambda_is_no_lamb(name: str, family: str) -> None:
    rule = first_match(shipped_kernel_classes(), name)
    assert rule is not None
    assert rule.family == family


def test_kernels_and_families() -> None:
    built = trace()
    for i, lasts in enumerate((10, 30, 20)):
        built.kernel("sm90_gemm", at=100 * i, lasts=lasts)
    built.kernel("nobody_knows_this", at=1000, lasts=40)
    result = analyze_trace(built.load())
    gemm, unknown = result.kernels
    assert (gemm.count, gemm.total_ns, gemm.mean_ns, gemm.min_ns, gemm.max_ns, gemm.share) == (3, 60, 20, 10, 30, 0.6)
    assert (unknown.family, unknown.share) == (None, 0.4)
    assert [(row.family, row.total_ns) for row in result.kernel_families] == [("gemm", 60), (None, 40)]
