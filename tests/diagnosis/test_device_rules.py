"""Rules on what devices compute and reduce: for each a trace that fires it, and ones beside it that do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from whystall.analysis.trace_analysis import analyze_trace
from whystall.diagnosis.case import Case
from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.finding import Finding
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rules import RULES
from whystall.replay.build import build_graph
from whystall.testing import TraceBuilder, trace

GEMM_NS = 500_000
REDUCE_NS = 400_000
MIB = 1 << 20


def found(built: TraceBuilder, *, ranks: int = 1) -> dict[str, Finding]:
    """The findings on one rank, or on several that did the same at the same time."""
    recorded = built.load()
    each = [(rank, recorded) for rank in range(ranks)]
    cases = tuple(RankCase(rank, trace, analyze_trace(trace)) for rank, trace in each)
    case = Case(ranks=cases, graph=build_graph(each))
    diagnosis = diagnose(case, RULES)
    assert not diagnosis.failures
    return {finding.id: finding for finding in diagnosis.findings}


# --- gradients that are accumulated -------------------------------------------------------------------------------------


def passes(step: Sequence[Sequence[int]], *, optimizer_after: Sequence[int] = (-1,)) -> TraceBuilder:
    """Eight steps of backward passes; each pass reduces messages of some MiB, for which the host waits."""
    built = trace()
    at = 0
    for number in range(8):
        begin = at
        for index, sizes in enumerate(step):
            built.annotation("DistributedDataParallel.forward", at=at, lasts=20_000)
            built.operator("aten::mm", at=at + 2_000, lasts=10_000)
            built.launch("gemm", at=at + 5_000, call_lasts=4_000, runs_at=at + 12_000, lasts=GEMM_NS)
            runs = at + 12_000 + GEMM_NS
            for place, mib in enumerate(sizes):
                built.launch(
                    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
                    at=at + 30_000 + 8_000 * place,
                    call_lasts=4_000,
                    runs_at=runs,
                    lasts=REDUCE_NS,
                    **message(mib * MIB // 2),
                )
                runs += REDUCE_NS
            built.runtime("cudaDeviceSynchronize", at=at + 100_000, lasts=runs - at - 98_000)
            at = runs + 10_000
            if index in optimizer_after or index == len(step) + min(optimizer_after):
                built.annotation("Optimizer.step#AdamW.step", at=at, lasts=20_000)
                at += 25_000
        built.step(number, at=begin, lasts=at - begin)
    return built


def message(elements: int) -> dict[str, Any]:
    return {
        "Collective name": "allreduce",
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "Group size": 2,
        "dtype": "BFloat16",
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
    }


@pytest.mark.parametrize("ranks", [1, 2])
def test_gradients_that_are_reduced_in_every_pass(ranks: int) -> None:
    finding = found(passes([[24, 8]] * 4), ranks=ranks)["communication.redundant-sync"]
    assert finding.gain is not None
    whole = 4 * (GEMM_NS + 2 * REDUCE_NS + 22_000)
    assert finding.gain.expected == pytest.approx(whole / (whole - 6 * REDUCE_NS), rel=0.03)
    assert [fact.value for fact in finding.evidence] == [4, 6, 6 * REDUCE_NS]


@pytest.mark.parametrize(
    ("step", "optimizer_after"),
    [
        pytest.param([[], [], [], [24, 8]], (-1,), id="no_sync"),
        pytest.param([[24, 8]], (-1,), id="one-pass"),
        pytest.param([[24, 8], [16]], (-1,), id="two-models"),
        pytest.param([[24, 8], [24, 8]], (0, 1), id="a-step-after-each"),
    ],
)
def test_reductions_that_are_needed(step: list[list[int]], optimizer_after: tuple[int, ...]) -> None:
    assert "communication.redundant-sync" not in found(passes(step, optimizer_after=optimizer_after))


# --- parameters that are gathered ----------------------------------------------------------------------------------------


def layers(forward: str, backward: str, *, beside: bool = False) -> TraceBuilder:
    """Eight steps of four layers: G gathers, C computes, S scatters, one after the other; or what is not C beside the C before."""
    built = trace()
    kernels = {"G": "ncclDevKernel_AllGather_RING_LL", "S": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL"}
    said = {"G": "_allgather_base", "S": "_reduce_scatter_base"}
    at = 0
    for number in range(8):
        begin, host, runs = at, at, at + 20_000
        for what in forward * 4 + backward * 4:
            if what == "C":
                built.launch("gemm", at=host, call_lasts=2_000, runs_at=runs, lasts=GEMM_NS)
                runs += GEMM_NS
            else:
                starts = runs - GEMM_NS if beside and runs > at + 20_000 else runs
                more = {**message(1 << 20), "Collective name": said[what]}
                built.launch(
                    kernels[what], at=host, call_lasts=2_000, runs_at=starts, lasts=REDUCE_NS, stream=20, **more
                )
                runs = max(runs, starts + REDUCE_NS)
            host += 3_000
        built.runtime("cudaDeviceSynchronize", at=host, lasts=runs - host + 2_000)
        at = runs + 10_000
        built.step(number, at=begin, lasts=at - begin)
    return built


def test_parameters_that_are_gathered_late_are_worth_what_compute_could_hide() -> None:
    finding = found(layers("GC", "GCS"))["communication.no-prefetch"]
    assert finding.evidence[0].value == pytest.approx(7, abs=0.5)  # all but the first of a step
    assert finding.gain is not None
    whole = 8 * GEMM_NS + 12 * REDUCE_NS + 32_000
    # By hand: the first four layers and the fifth hide a gather each (400 of 500 us), the next two a scatter and 100 us of a gather
    # each, the last one a scatter; the first gather and the last scatter have nothing to hide behind.
    hidden = 5 * REDUCE_NS + 2 * GEMM_NS + REDUCE_NS
    assert finding.gain.expected == pytest.approx(whole / (whole - hidden), rel=0.01)


@pytest.mark.parametrize(
    "built",
    [
        pytest.param(layers("GCS", "GCS"), id="sequence-parallel"),
        pytest.param(layers("GC", "GCS", beside=True), id="prefetched"),
        pytest.param(layers("GC", "GC"), id="inference"),
    ],
)
def test_gathers_that_are_needed_then_or_hidden(built: TraceBuilder) -> None:
    assert "communication.no-prefetch" not in found(built)


# --- casts --------------------------------------------------------------------------------------------------------------


def casts(source: str, target: str, *, around: str = "aten::_to_copy") -> TraceBuilder:
    """Ten steps of a product of 500 us and a copy of 200 us, for which the host waits."""
    built = trace()
    for number in range(10):
        at = number * 800_000
        built.step(number, at=at, lasts=800_000)
        built.operator("aten::mm", at=at, lasts=10_000)
        built.launch("gemm", at=at + 2_000, call_lasts=4_000, runs_at=at + 12_000, lasts=GEMM_NS)
        built.operator("aten::to", at=at + 20_000, lasts=30_000)
        built.operator(around, at=at + 22_000, lasts=25_000)
        types = [target, source, "Scalar"]
        recorded: dict[str, Any] = {"Input Dims": [[1024, 1024], [1024, 1024], []], "Input type": types}
        built.operator("aten::copy_", at=at + 24_000, lasts=20_000, **recorded)
        built.launch(
            "direct_copy_kernel_cuda", at=at + 28_000, call_lasts=4_000, runs_at=at + 12_000 + GEMM_NS, lasts=200_000
        )
        built.runtime("cudaDeviceSynchronize", at=at + 60_000, lasts=660_000)
    return built


def test_copies_into_another_floating_type_are_worth_their_time() -> None:
    finding = found(casts("c10::BFloat16", "float"))["compute.cast-churn"]
    assert finding.gain is not None
    assert finding.gain.expected == pytest.approx(800 / 600, rel=0.02)
    assert finding.evidence[1].value == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize(
    ("source", "target", "around"),
    [
        ("float", "float", "aten::_to_copy"),
        ("long int", "float", "aten::_to_copy"),
        ("float", "bool", "aten::_to_copy"),
        ("c10::BFloat16", "float", "aten::clone"),
    ],
)
def test_other_copies_are_no_casts(source: str, target: str, around: str) -> None:
    assert "compute.cast-churn" not in found(casts(source, target, around=around))


# --- limits -------------------------------------------------------------------------------------------------------------

H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_000_000_000}


def products(
    rows: int, columns: int, inner: int, *, takes_ns: int, gap_ns: int = 2_000, trained: bool = True
) -> TraceBuilder:
    """Ten steps of one product in bf16 on an H100; the next follows after a gap."""
    built = trace(deviceProperties=[H100])
    for number in range(10):
        at = number * (takes_ns + gap_ns)
        built.step(number, at=at, lasts=takes_ns + gap_ns)
        more: dict[str, Any] = {"Fwd thread id": 1, "Sequence number": number} if trained else {}
        shapes: dict[str, Any] = {
            "Input Dims": [[rows, inner], [inner, columns]],
            "Input type": ["c10::BFloat16", "c10::BFloat16"],
        }
        built.operator("aten::mm", at=at + 1_000, lasts=9_000, **shapes, **more)
        built.launch("nvjet_tst_bf16", at=at + 3_000, call_lasts=4_000, runs_at=at + 10_000, lasts=takes_ns)
    return built


SQUARE_NS = round(2 * 8192**3 / 989e12 * 1e9)  # at the peak of the data sheet
VECTOR_NS = round(8192 * 8192 * 2 / 3350e9 * 1e9)  # the weights once, at the bandwidth of the data sheet


@pytest.mark.parametrize(
    ("built", "cause"),
    [
        (products(8192, 8192, 8192, takes_ns=round(SQUARE_NS / 0.7)), "compute.at-limit"),
        (products(1, 8192, 8192, takes_ns=round(VECTOR_NS / 0.8), trained=False), "inference.bandwidth-bound-decode"),
        (products(1, 8192, 8192, takes_ns=round(VECTOR_NS / 0.8)), "compute.at-limit"),
        (products(8192, 8192, 8192, takes_ns=round(SQUARE_NS / 0.4)), None),
        (products(8192, 8192, 8192, takes_ns=round(SQUARE_NS / 0.7), gap_ns=SQUARE_NS), None),
    ],
)
def test_a_device_near_its_limit_is_told_so(built: TraceBuilder, cause: str | None) -> None:
    limits = {name: one for name, one in found(built).items() if name.endswith(("at-limit", "bandwidth-bound-decode"))}
    assert set(limits) == ({cause} if cause else set())
    assert all((one.severity, one.remedy) == ("info", None) for one in limits.values())
