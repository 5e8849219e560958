"""compute.graph-copies: copies directly before and after replays fire it; other copies do not."""

from __future__ import annotations

from typing import Final

import pytest
from tests.conftest import RealTraces
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import GAP_NS, LATENCY_NS, Job, is_worth

from whystall.testing import TraceBuilder

CAUSE: Final = "compute.graph-copies"
WITHIN: Final = "Memcpy DtoD (Device -> Device)"
HIP_WITHIN: Final = "CopyDeviceToDevice"
FROM_HOST: Final = "Memcpy HtoD (Pinned -> Device)"
KERNEL: Final = "void at::native::vectorized_elementwise_kernel<4, direct_copy_kernel_cuda(TensorIteratorBase&)>"
COPY_NS: Final = 60_000


def _replay(job: Job, number: int, *, kernels: int = 50) -> None:
    """One call that launches many kernels."""
    job.built.runtime(f"{job.api}GraphLaunch", at=job.at, lasts=9_000, correlation=10_000 + number)
    runs = max(job.at + LATENCY_NS, job.busy_until.get(7, -GAP_NS) + GAP_NS)
    for _ in range(kernels):
        job.built.kernel("gemm", at=runs, lasts=20_000, correlation=10_000 + number)
        runs += 20_000 + GAP_NS
    job.busy_until[7] = runs - GAP_NS
    job.at += 9_000


def _copy(job: Job, kind: str, operator: str, outer: str) -> None:
    category = "kernel" if "elementwise_kernel" in kind else "gpu_memcpy"
    with job.inside(outer), job.inside(operator):
        job.launch(kind, COPY_NS, call="LaunchKernel" if category == "kernel" else "MemcpyAsync", category=category)


def replays(
    *,
    before: int = 2,
    after: int = 1,
    kind: str = WITHIN,
    operator: str = "aten::copy_",
    outer: str = "aten::clone",
    between: str = "",
    api: str = "cuda",
    count: int = 8,
) -> tuple[TraceBuilder, float]:
    """Steps of copies, what is ``between`` them and the graph, the graph, and again copies."""
    job = Job(api=api)
    for number in job.steps(count):
        for _ in range(before):
            _copy(job, kind, operator, outer)
        if between:
            job.operator("aten::add", between, 2_000)
        _replay(job, number)
        if between:
            job.operator("aten::add", between, 2_000)
        for _ in range(after):
            _copy(job, kind, operator, outer)
        if between:
            job.operator("aten::add", between, 2_000)
        job.wait()
    return job.built, job.step_ns if count > 2 else 0.0


@pytest.mark.parametrize(
    ("kind", "operator", "outer", "api"),
    [
        (WITHIN, "aten::copy_", "aten::clone", "cuda"),
        (KERNEL, "aten::_foreach_copy_", "## cudagraphs ##", "cuda"),
        (HIP_WITHIN, "aten::copy_", "aten::contiguous", "hip"),
    ],
)
def test_copies_into_and_out_of_graphs(kind: str, operator: str, outer: str, api: str) -> None:
    built, copying = replays(kind=kind, operator=operator, outer=outer, api=api)
    finding = found_in(built)[CAUSE]
    is_worth(finding, copying / replays(before=0, after=0, api=api)[1])
    assert [fact.value for fact in finding.evidence[:2]] == [8, 3 * COPY_NS]
    # Something may need them: half of it is certain.
    assert finding.gain is not None
    assert 1 - 1 / finding.gain.floor <= 0.55 * (1 - 1 / finding.gain.expected)


def test_a_copy_from_the_host_beside_them_is_none_of_them() -> None:
    job = Job()
    for number in job.steps(8):
        _copy(job, WITHIN, "aten::copy_", "aten::clone")
        _copy(job, FROM_HOST, "aten::copy_", "aten::to")
        _replay(job, number)
        job.wait()
    facts = found_in(job.built)[CAUSE].evidence
    assert [fact.value for fact in facts[1:2]] == [COPY_NS]


@pytest.mark.parametrize(
    "built",
    [
        pytest.param(replays(before=0, after=0)[0], id="none"),
        pytest.param(replays(kind=FROM_HOST, outer="aten::to")[0], id="from-the-host"),
        pytest.param(replays(between="vectorized_elementwise_kernel<add>")[0], id="of-what-is-computed-beside"),
        pytest.param(replays(kind="elementwise_kernel<mul>", operator="aten::mul")[0], id="no-copies"),
        pytest.param(replays(count=1)[0], id="one-replay"),
    ],
)
def test_other_work_beside_graphs(built: TraceBuilder) -> None:
    assert CAUSE not in found_in(built)


def test_copies_without_graphs() -> None:
    job = Job()
    for _ in job.steps(8):
        for _ in range(5):
            _copy(job, WITHIN, "aten::copy_", "aten::clone")
            job.operator("aten::mm", "gemm", 100_000)
        job.wait()
    assert CAUSE not in found_in(job.built)


@pytest.mark.real_traces
@pytest.mark.parametrize("name", ["sglang-decode-mi300x.json.gz", "tp-decode-b200.json.gz"])
def test_recorded_decoding(name: str, real_traces: RealTraces) -> None:
    """One replay with 9 us of copies beside 9.7 ms; copies around collectives, without any graph."""
    assert CAUSE not in {finding.id for finding in real_traces.report(name).findings}
