"""compute.loop-over-time: cells in a loop over a sequence are worth a layer for all of it; decoders are not."""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.diagnosis.cases import told_of
from tests.diagnosis.jobs import A100, Job, shaped

PLACES: Final = 60
BATCH, INPUTS, HIDDEN = 64, 256, 512
GATES: Final = 4 * HIDDEN
PRODUCT_NS, CELL_NS, SUM_NS = 20_000, 5_000, 15_000
WEIGHTS: Final = ([GATES, INPUTS], [GATES, HIDDEN])


def cell(job: Job) -> None:
    given: dict[str, Any] = shaped([BATCH, INPUTS], [BATCH, HIDDEN], *WEIGHTS, [GATES], [GATES])
    given["Input Dims"][1] = [[BATCH, HIDDEN], [BATCH, HIDDEN]]
    with job.inside("aten::lstm_cell", **given):
        for depth in (INPUTS, HIDDEN):
            with job.inside("aten::linear", **shaped([BATCH, depth], [GATES, depth])):
                job.operator("aten::mm", "ampere_sgemm_128x64_tn", PRODUCT_NS, **shaped([BATCH, depth], [depth, GATES]))
        job.operator("aten::_thnn_fused_lstm_cell", "lstm_cell_forward", CELL_NS, **shaped([BATCH, GATES]))


def reading(before: str = "aten::select", behind: str = "", *, places: int = PLACES) -> Job:
    """Eight steps that read a sequence place by place, with an operator before and behind each cell."""
    job = Job(A100)
    for _ in job.steps(8):
        for _ in range(places):
            if before:
                job.operator(before, **shaped([BATCH, places, INPUTS]))
            cell(job)
            if behind:
                job.operator(behind, "kernel", PRODUCT_NS, **shaped([BATCH, 1, INPUTS], [BATCH, INPUTS, 20]))
        job.operator("aten::mm", "gemm", 1_000_000, **shaped([4096, 4096], [4096, 4096]))
        job.wait()
    return job


def as_a_layer() -> Job:
    """The same by a layer: one product of all inputs, then for each place what the state passes through."""
    job = Job(A100)
    flops = 2 * PLACES * BATCH * INPUTS * GATES
    for _ in job.steps(8):
        with job.inside("aten::lstm"):
            job.launch("gemm", round(flops / 19.5e12 / 0.7 * 1e9))
            for _ in range(PLACES):
                job.launch("gemm", PRODUCT_NS)
                job.launch("lstm_cell", CELL_NS)
        job.operator("aten::mm", "gemm", 1_000_000, **shaped([4096, 4096], [4096, 4096]))
        job.wait()
    return job


def test_cells_in_a_loop_are_worth_a_layer() -> None:
    """Nothing learns: whether the cells are of one network is not certain."""
    finding = told_of(reading().built)["compute.loop-over-time"]
    assert finding.gain is not None
    assert finding.gain.floor == 1.0
    assert finding.gain.expected == pytest.approx(reading().step_ns / as_a_layer().step_ns, rel=0.5)
    assert finding.gain.floor <= reading().step_ns / as_a_layer().step_ns <= finding.gain.ceiling
    assert {one.what: one.value for one in finding.evidence}["cells that are called one by one"] == PLACES


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(reading(behind="aten::bmm"), id="a decoder with attention"),
        pytest.param(reading(behind="aten::mul"), id="a state that masks reset"),
        pytest.param(reading(behind="aten::to"), id="an environment that is stepped on the host"),
        pytest.param(reading(before=""), id="a decoder that is fed its own state"),
        pytest.param(reading(before="aten::index_select"), id="messages of a graph"),
        pytest.param(reading(behind="Attention"), id="a function of the user's own"),
        pytest.param(reading(places=4), id="a few places"),
        pytest.param(as_a_layer(), id="a layer"),
    ],
)
def test_others_are_none(job: Job) -> None:
    assert "compute.loop-over-time" not in told_of(job.built)
