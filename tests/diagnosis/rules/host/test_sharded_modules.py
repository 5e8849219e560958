"""host.sharded-modules: several sharded modules in each block fire it; sharded blocks, and long kernels, do not."""

from __future__ import annotations

from typing import Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import Job, is_worth

from whystall.testing import TraceBuilder

CAUSE: Final = "host.sharded-modules"
BLOCKS: Final = 6
HOOK_NS: Final = 100_000
HOOKS: Final = ("pre_forward", "post_forward", "pre_backward", "post_backward_reduce")
FINE: Final = ("attention", "up", "down")


def _hook(job: Job, kind: str, module: str) -> None:
    with job.marked(f"FSDP::{kind} ({module})"):
        if kind == "pre_forward":
            with job.marked(f"FSDP::all_gather ({module})"):
                job.python(HOOK_NS // 2)
        job.python(HOOK_NS // 2 if kind == "pre_forward" else HOOK_NS)
        job.launch("ncclDevKernel_AllGather_RING_LL", 2_000, stream=20)


def sharded(
    *,
    modules: tuple[str, ...] = FINE,
    name: str = "layers.{block}.{module}",
    kernel_ns: int = 5_000,
    hooks: tuple[str, ...] = HOOKS,
    api: str = "cuda",
) -> tuple[TraceBuilder, float]:
    """Eight steps of blocks of three products each, whose modules are sharded by themselves."""
    job = Job(api=api)
    for _ in job.steps(8):
        for block in range(BLOCKS):
            for module in modules:
                for kind in hooks:
                    _hook(job, kind, name.format(block=block, module=module).rstrip("."))
            for _ in FINE:
                job.operator("aten::mm", "gemm", kernel_ns)
        job.wait()
    return job.built, job.step_ns


@pytest.mark.parametrize(
    ("name", "api"),
    [("layers.{block}.{module}", "cuda"), ("model.encoder.h.{block}.mlp.experts.0.{module}", "hip")],
)
def test_modules_of_a_block_that_are_sharded_one_by_one(name: str, api: str) -> None:
    built, fine = sharded(name=name, api=api)
    finding = found_in(built)[CAUSE]
    is_worth(finding, fine / sharded(modules=("",), api=api)[1], within=0.1)
    assert [fact.value for fact in finding.evidence[:3]] == [3 * BLOCKS, BLOCKS, 3 * BLOCKS * len(HOOKS)]


@pytest.mark.parametrize(
    "built",
    [
        pytest.param(sharded(modules=("",))[0], id="blocks"),
        pytest.param(sharded(name="{module}_{block}")[0], id="no-blocks"),
        pytest.param(sharded(kernel_ns=2_000_000)[0], id="hidden-by-the-device"),
        pytest.param(sharded(hooks=())[0], id="not-sharded"),
    ],
)
def test_what_is_sharded_well(built: TraceBuilder) -> None:
    assert CAUSE not in found_in(built)
