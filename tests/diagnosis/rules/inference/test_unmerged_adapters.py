"""inference.unmerged-adapters: narrow products beside each layer fire it; bottlenecks, and training, do not."""

from __future__ import annotations

from typing import Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import A100, Job, is_worth, shaped

WIDTH: Final = 2_048
KERNEL_NS: Final = 30_000
GEMV: Final = "void gemv2T_kernel_val<int, int, __half, __half, __half, float, 128, 16, 4, 4, false, false>"


def product(job: Job, rows: int, inner: int, columns: int, lasts: int) -> None:
    with job.inside("aten::linear"):
        job.operator("aten::mm", GEMV, lasts, **shaped([rows, inner], [inner, columns], dtype="c10::Half"))


def decoding(
    *, rank: int = 16, base: bool = True, adapted: bool = True, trains: bool = False, between: str | None = None
) -> Job:
    """Eight steps of twelve layers, each with an adapter."""
    job = Job(A100)
    for number in job.steps(8):
        for _ in range(12):
            if base:
                product(job, 1, WIDTH, WIDTH, KERNEL_NS)
            if adapted:
                product(job, 1, WIDTH, rank, KERNEL_NS // 3)
                if between is not None:
                    job.operator(between, "void at::native::vectorized_elementwise_kernel<4>", 3_000)
                product(job, 1, rank, WIDTH, KERNEL_NS // 3)
                for name in ("aten::mul", "aten::add"):
                    job.operator(name, "void at::native::vectorized_elementwise_kernel<4>", 3_000)
            job.operator("aten::silu", "void at::native::vectorized_elementwise_kernel<4>", 3_000)
        if trains:
            job.operator("aten::mm", GEMV, KERNEL_NS, **{"Fwd thread id": 1, "Sequence number": number})
        job.wait()
    return job


def test_adapters_are_worth_their_operators() -> None:
    job = decoding()
    finding = found_in(job.built)["inference.unmerged-adapters"]
    is_worth(finding, job.step_ns / decoding(adapted=False).step_ns, within=0.1)
    assert finding.evidence[0].value == 12
    assert finding.remedy is not None
    assert "merge_and_unload" in (finding.remedy.patch or "")


@pytest.mark.parametrize(
    ("rank", "base", "adapted", "trains"),
    [
        (16, False, True, False),  # a bottleneck of its own
        (1_024, True, True, False),  # as wide as a layer
        (16, True, False, False),
        (16, True, True, True),  # it learns
    ],
)
def test_other_products_are_none(rank: int, *, base: bool, adapted: bool, trains: bool) -> None:
    job = decoding(rank=rank, base=base, adapted=adapted, trains=trains)
    assert "inference.unmerged-adapters" not in found_in(job.built)


@pytest.mark.parametrize(("between", "told"), [("aten::to", True), ("aten::relu", False)])
def test_a_bottleneck_with_an_activation_is_a_layer_of_its_own(between: str, *, told: bool) -> None:
    assert ("inference.unmerged-adapters" in found_in(decoding(between=between).built)) == told


def test_the_work_of_the_next_layer_is_not_the_adapters() -> None:
    """An activation comes after the adapter's last product, and then a multiplication of the next layer."""
    job = Job(A100)
    for _ in job.steps(8):
        for _ in range(12):
            product(job, 1, WIDTH, WIDTH, KERNEL_NS)
            product(job, 1, WIDTH, 16, KERNEL_NS // 3)
            product(job, 1, 16, WIDTH, KERNEL_NS // 3)
            job.operator("aten::relu", "void at::native::vectorized_elementwise_kernel<4>", 3_000)
            job.operator("aten::mul", "void at::native::vectorized_elementwise_kernel<4>", 500_000)
        job.wait()
    finding = found_in(job.built).get("inference.unmerged-adapters")
    assert finding is None or finding.gain is None or finding.gain.ceiling < 1.2
