"""compute.loop-over-groups: experts one after the other fire it; layers, growing sequences and batches do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pytest
from tests.diagnosis.cases import found_in, told_of
from tests.diagnosis.jobs import A100, Job, is_worth, shaped

TOKENS, WIDTH, INNER = 4_096, 2_048, 1_024
PRODUCT: Final = "ampere_bf16_s16816gemm_bf16_128x128_ldg8"
ELEMENTWISE: Final = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<c10::BFloat16>>"
DTYPE: Final = "c10::BFloat16"
A100_FLOPS_PER_S, A100_BYTES_PER_S = 312e12, 2.0e12


def _lasts(flops: float, moved: float) -> int:
    """The time of a good kernel on an A100, 4 us at the least (ns)."""
    return max(int(flops / (0.65 * A100_FLOPS_PER_S) * 1e9), int(moved / (0.8 * A100_BYTES_PER_S) * 1e9), 4_000)


def _product(job: Job, rows: int, inner: int, columns: int, *, slower: float = 1.0, **more: Any) -> None:
    lasts = _lasts(2 * rows * inner * columns, 2 * (rows * inner + inner * columns + rows * columns))
    job.operator(
        "aten::mm", PRODUCT, int(lasts * slower), **shaped([rows, inner], [inner, columns], dtype=DTYPE), **more
    )


def _elements(job: Job, name: str, *sizes: list[int]) -> None:
    moved = 2 * 2 * int(np.prod(sizes[0]))
    job.operator(name, ELEMENTWISE, _lasts(0, moved), **shaped(*sizes, dtype=DTYPE))


def _group(job: Job, rows: int, *, wait: bool) -> None:
    if wait:
        with job.inside("aten::nonzero"):
            job.launch("Memcpy DtoH (Device -> Pageable)", 1_000, call="MemcpyAsync")
            job.wait()
    _elements(job, "aten::index", [rows, WIDTH])
    # Small products reach a lower rate than large ones.
    _product(job, rows, WIDTH, INNER, slower=1.5)
    _elements(job, "aten::silu", [rows, INNER])
    _product(job, rows, INNER, WIDTH, slower=1.5)
    _elements(job, "aten::index_add_", [TOKENS, WIDTH], [rows, WIDTH])


def mixture(groups: Sequence[int], *, grouped: bool = False, wait: bool = False, layers: int = 4) -> Job:
    """Six steps of layers, each with two products over all tokens and with experts."""
    job = Job(A100)
    for _ in job.steps(6):
        for _ in range(layers):
            _product(job, TOKENS, WIDTH, 4 * WIDTH)
            _product(job, TOKENS, 4 * WIDTH, WIDTH)
            if grouped:
                total = sum(groups)
                _elements(job, "aten::index", [total, WIDTH])
                _product(job, total, WIDTH, INNER)
                _elements(job, "aten::silu", [total, INNER])
                _product(job, total, INNER, WIDTH)
                _elements(job, "aten::index_add_", [total, WIDTH], [total, WIDTH])
            else:
                for rows in groups:
                    _group(job, rows, wait=wait)
        job.wait()
    return job


ROWS: Final = [int(rows) for rows in np.random.default_rng(3).integers(60, 220, 32)]


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("groups", [ROWS, ROWS[:12], [rows * 8 for rows in ROWS[:8]]])
def test_experts_are_worth_what_a_grouped_product_saves(groups: list[int], wait: bool) -> None:
    job = mixture(groups, wait=wait)
    finding = found_in(job.built)["compute.loop-over-groups"]
    is_worth(finding, job.step_ns / mixture(groups, grouped=True).step_ns, within=0.15)
    assert {one.what: one.value for one in finding.evidence}["groups in one, on average"] == len(groups)
    assert finding.remedy is not None
    assert "grouped_mm" in (finding.remedy.patch or "")


def test_the_backward_passes_of_the_groups_are_theirs() -> None:
    job = Job(A100)
    for _ in job.steps(6):
        numbers = []
        for number, rows in enumerate(ROWS):
            _product(job, rows, WIDTH, INNER, **{"Sequence number": number, "Fwd thread id": 0})
            numbers.append((number, rows))
        _product(job, TOKENS, WIDTH, 4 * WIDTH)
        for number, rows in reversed(numbers):
            more = {"Sequence number": number, "Fwd thread id": 1}
            with job.inside("autograd::engine::evaluate_function: MmBackward0", **more):
                _product(job, INNER, rows, WIDTH)
            with (
                job.inside("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"),
                job.inside("torch::autograd::AccumulateGrad", **shaped([WIDTH, INNER])),
            ):
                _elements(job, "aten::add_", [WIDTH, INNER])
        job.wait()
    finding = found_in(job.built)["compute.loop-over-groups"]
    assert {one.what: one.value for one in finding.evidence}["kernels in them"] == 3 * len(ROWS)


@pytest.mark.parametrize(
    "groups",
    [
        [128] * 32,  # layers: the same rows
        list(range(64, 128)),  # a sequence that grows
        list(range(128, 64, -2)),  # a batch that shrinks, as packed sequences do
        [128] * 20 + [96] + [128] * 20,  # a batch and its rest
        [100, 140, 90],  # too few
        [*range(128, 64, -4), *range(64, 128, 4)],  # a batch that is packed both ways
    ],
)
def test_what_is_no_loop_over_groups(groups: list[int]) -> None:
    assert "compute.loop-over-groups" not in found_in(mixture(groups).built)


def test_groups_that_may_need_each_others_results_are_a_question() -> None:
    """Levels of a graph, leaves of a search: the recording does not show that they are independent."""
    job, order = Job(A100), np.random.default_rng(5)
    for _ in job.steps(6):
        for rows in order.integers(60, 220, 24).tolist():
            _group(job, rows, wait=False)
        job.wait()
    assert "compute.loop-over-groups" not in found_in(job.built)
    told = told_of(job.built)["compute.loop-over-groups"].gain
    assert told is not None
    assert told.floor == 1.0 < told.expected


def test_work_on_a_groups_rows_of_three_dimensions_stays() -> None:
    """Texts of unequal lengths: an activation gets samples by positions by features, a product gets their rows."""
    groups = [rows * 16 for rows in ROWS[:12]]

    def evaluated(together: bool) -> Job:
        job = Job(A100)
        for _ in job.steps(6):
            for _ in range(2):
                for rows in [sum(groups)] if together else groups:
                    _product(job, rows, WIDTH, INNER)
                    for _ in range(4):
                        _elements(job, "aten::gelu", [16, rows // 16, INNER])
                _product(job, TOKENS, WIDTH, 4 * WIDTH)
            job.wait()
        return job

    job = evaluated(together=False)
    gain = told_of(job.built)["compute.loop-over-groups"].gain
    assert gain is not None
    assert gain.expected == pytest.approx(job.step_ns / evaluated(together=True).step_ns, rel=0.03)


def test_batches_that_are_exchanged_with_other_ranks_are_none() -> None:
    job = Job(A100)
    for _ in job.steps(6):
        for rows in ROWS:
            job.operator("c10d::recv_", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 5_000)
            _group(job, rows, wait=False)
        job.wait()
    assert "compute.loop-over-groups" not in told_of(job.built)


def test_batches_that_are_copied_from_the_host_are_none() -> None:
    job = Job(A100)
    for _ in job.steps(6):
        for rows in ROWS:
            job.operator("aten::copy_", "Memcpy HtoD (Pageable -> Device)", 5_000)
            _group(job, rows, wait=False)
        job.wait()
    assert "compute.loop-over-groups" not in found_in(job.built)


def test_batches_that_are_learnt_from_are_none() -> None:
    """A backward pass follows each batch; the recording has no steps."""
    job = Job(A100)
    for rows in ROWS:
        _group(job, rows, wait=False)
        with job.inside("autograd::engine::evaluate_function: MmBackward0", **{"Fwd thread id": 1}):
            _product(job, rows, INNER, WIDTH)
    assert "compute.loop-over-groups" not in found_in(job.built)


def test_steps_of_one_batch_each_are_none() -> None:
    job = Job(A100)
    steps = job.steps(len(ROWS))
    for rows in ROWS:
        next(steps)
        _group(job, rows, wait=True)
    assert next(steps, None) is None
    assert "compute.loop-over-groups" not in found_in(job.built)
