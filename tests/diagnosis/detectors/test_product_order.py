"""compute.redundant-work: three matrices that are multiplied in the costlier order, in recordings of torch's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.diagnosis.cases import told_of
from tests.diagnosis.detectors.recordings import found_in, told_in
from tests.diagnosis.jobs import A100, Job, shaped

from whystall.diagnosis.finding import Finding

torch = pytest.importorskip("torch")
BATCH, LENGTH, DEPTH = 4, 768, 16


def of_three(found: dict[str, Finding]) -> Finding | None:
    """What is said of products of three matrices."""
    one = found.get("compute.redundant-work")
    return one if one is not None and "three matrices" in one.title else None


def three(learns: bool) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(BATCH, LENGTH, DEPTH, requires_grad=learns) for _ in range(3))
    return q, k, v


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("form", ["matmul", "einsum", "scaled", "turned"])
def test_the_costlier_order_is_told_with_what_the_other_one_leaves(form: str, *, learns: bool, tmp_path: Path) -> None:
    q, k, v = three(learns)

    def step() -> None:
        if form == "einsum":
            out = torch.einsum("bnm,bme->bne", torch.einsum("bnd,bmd->bnm", q, k), v)
        elif form == "turned":
            out = v.mT @ (k @ q.mT)
        else:
            between = q @ k.mT
            out = (between / 4 if form == "scaled" else between) @ v
        if learns:
            out.sum().backward()

    finding = told_in(step, tmp_path, of_three, worth=2)
    assert finding.gain is not None
    # 768 x 768 by way of 16: a fiftieth of the multiplications is left
    assert finding.gain.expected > 2
    assert finding.remedy is not None
    assert "not (q @ k.mT) @ v" in (finding.remedy.patch or "")


def test_a_low_rank_update_that_is_multiplied_out_first_is_told(tmp_path: Path) -> None:
    x, down, up = torch.randn(64, 1024), torch.randn(1024, 8), torch.randn(8, 1024)
    told_in(lambda: x @ (down @ up), tmp_path, of_three)


@pytest.mark.parametrize("between", ["softmax", "mask", "read twice", "cheap order", "a square"])
def test_what_must_be_in_this_order_is_none(between: str, tmp_path: Path) -> None:
    q, k, v = three(learns=False)
    mask = torch.ones(LENGTH, LENGTH).tril()

    def step() -> object:
        if between == "cheap order":
            return q @ (k.mT @ v)
        if between == "a square":
            square = torch.randn(DEPTH, DEPTH)
            return square @ square @ square
        scores = q @ k.mT
        if between == "softmax":
            scores = scores.softmax(-1)
        if between == "mask":
            scores = scores * mask
        out = scores @ v
        return (out, scores.square().mean()) if between == "read twice" else out

    assert of_three(found_in(step, tmp_path)) is None


@pytest.mark.parametrize("fused", [False, True])
def test_a_fused_kernel_between_two_products_may_write_what_they_hand_over(*, fused: bool) -> None:
    """An activation in place: its arguments may be recorded otherwise."""
    job = Job(A100)
    rows, narrow, wide = 16_384, 1_024, 8_192
    for _ in job.steps(4):
        job.operator("aten::mm", "gemm", 2_000_000, **shaped([rows, narrow], [narrow, wide]))
        if fused:
            job.operator(
                "triton_poi_fused_mul_silu_3", "triton_poi_fused_mul_silu_3", 100_000, **shaped([rows, narrow])
            )
        job.operator("aten::mm", "gemm", 2_000_000, **shaped([rows, wide], [wide, narrow]))
        job.wait()
    assert ("compute.redundant-work" in told_of(job.built)) is not fused
