"""host.compiled-wrapper: compiled regions of short kernels fire it; long ones, replayed and changing ones do not."""

from __future__ import annotations

from typing import Final

import pytest
from tests.conftest import RealTraces
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import GAP_NS, LATENCY_NS, Job, is_worth

from whystall.testing import TraceBuilder

CAUSE: Final = "host.compiled-wrapper"
MARK: Final = "## Call CompiledFxGraph fqeewymxsyw3xnpkc7tcysln2blzouazlayhd3p6hbpinsttux7e ##"
KERNEL: Final = "triton_poi_fused_add_mul_0"
KERNELS: Final = 60
REPLAY_NS: Final = 50_000


def compiled(
    *,
    mark: str = MARK,
    kernel: str = KERNEL,
    lasts: int = 3_000,
    call: str = "LaunchKernel",
    api: str = "cu",
    changes: bool = False,
    waits: bool = False,
) -> tuple[TraceBuilder, float]:
    """Eight steps of a compiled call that launches kernels 10 us after each other, and a product that is not in it."""
    job = Job(api=api)
    for number in job.steps(8):
        with job.marked(mark):
            for place in range(KERNELS):
                job.python(6_000)
                job.launch(kernel, lasts, call=call, grid=[64 + (number if changes else 0), 1, place + 1])
            if waits:
                job.call("StreamSynchronize", 4_000)
        job.operator("aten::mm", "gemm", 30_000)
        job.wait()
    return job.built, job.step_ns


def replayed() -> tuple[TraceBuilder, float]:
    """The same with each call as one launch of a graph."""
    job = Job()
    for number in job.steps(8):
        with job.marked(MARK):
            job.python(REPLAY_NS - 9_000)
            job.built.runtime("cudaGraphLaunch", at=job.at, lasts=9_000, correlation=10_000 + number)
            runs = job.at + LATENCY_NS
            for _ in range(KERNELS):
                job.built.kernel(KERNEL, at=runs, lasts=3_000, correlation=10_000 + number)
                runs += 3_000 + GAP_NS
            job.at += 9_000
            job.busy_until[7] = runs
        job.operator("aten::mm", "gemm", 30_000)
        job.wait()
    return job.built, job.step_ns


@pytest.mark.parametrize(
    ("mark", "call", "api"),
    [(MARK, "LaunchKernel", "cu"), ("## Call CompiledFxGraph None ##", "ModuleLaunchKernel", "hip")],
)
def test_a_compiled_call_of_many_short_kernels(mark: str, call: str, api: str) -> None:
    built, eager = compiled(mark=mark, call=call, api=api)
    found = found_in(built)
    is_worth(found[CAUSE], eager / replayed()[1], within=0.1)
    assert [fact.value for fact in found[CAUSE].evidence[:3]] == [1, KERNELS * 10_000, KERNELS * 3_000]
    # What the general cause says of the same time is not told beside it.
    assert next(iter(found)) == CAUSE
    assert "host.launch-bound" not in found


@pytest.mark.parametrize(
    "built",
    [
        pytest.param(replayed()[0], id="replayed"),
        pytest.param(compiled(lasts=40_000)[0], id="long-kernels"),
        pytest.param(compiled(changes=True)[0], id="shapes-change"),
        pytest.param(compiled(waits=True)[0], id="waits-for-the-device"),
        pytest.param(compiled(mark="my_region")[0], id="not-compiled"),
    ],
)
def test_what_no_graph_would_make_faster(built: TraceBuilder) -> None:
    assert CAUSE not in found_in(built)


@pytest.mark.real_traces
@pytest.mark.parametrize("name", ["tp-decode-b200.json.gz", "recsys-2rank-v100.json.gz"])
def test_recorded_jobs(name: str, real_traces: RealTraces) -> None:
    """A small compiled region of a large eager step; compiled by AOTAutograd, without Inductor."""
    assert CAUSE not in {finding.id for finding in real_traces.report(name).findings}
