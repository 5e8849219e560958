"""When each part of the ledger has its time: the same sums as the ledger's, and at the instants where it is."""

from __future__ import annotations

import polars as pl
import pytest
from tests.conftest import RealTraces

from whystall.analysis.excerpt import excerpt
from whystall.analysis.ledger_spans import ledger_spans
from whystall.analysis.results import Device, Ledger, Step
from whystall.analysis.trace_analysis import origin_of
from whystall.testing import trace
from whystall.testing.builder import EPOCH_NS
from whystall.trace.model import Trace

REAL = (
    "resnet50-workers0-v100.json.gz",
    "ddp-2rank-a100.json.gz",
    "dlrm-8rank-a100.json.gz",
    "tp-decode-b200.json.gz",
    "gloo-cpu-only-rank34.json.gz",
)


def parts(loaded: Trace, begin: int, end: int) -> list[tuple[int, int, str]]:
    rows = ledger_spans(loaded, 0, (EPOCH_NS + begin, EPOCH_NS + end)).iter_rows()
    return [(start - EPOCH_NS, length, part) for start, length, part in rows]


def sums(spans: pl.DataFrame) -> dict[str, int]:
    return dict(spans.group_by("part").agg(pl.col("duration_ns").sum()).iter_rows())


def known(ledger: Ledger) -> dict[str, int]:
    return {part: time for part in Ledger.__struct_fields__ if (time := getattr(ledger, part))}


@pytest.mark.real_traces
@pytest.mark.parametrize("name", REAL)
def test_every_window_adds_up_to_its_ledger_also_where_it_is_cut_out(name: str, real_traces: RealTraces) -> None:
    loaded, report = real_traces.load(name), real_traces.report(name)
    origin = origin_of(loaded)
    for device in report.devices:
        windows: list[Device | Step] = [device, *device.steps]
        for one in windows:
            begin, end = origin + one.start_ns, origin + one.start_ns + one.window_ns
            around = excerpt(loaded, (begin - one.window_ns, end + one.window_ns))
            for source in (loaded, around):
                spans = ledger_spans(source, device.device, (begin, end))
                assert sums(spans) == known(one.ledger)
                assert ((spans["ts_ns"] + spans["duration_ns"])[:-1] <= spans["ts_ns"][1:]).all()


def test_each_part_stands_where_it_happened() -> None:
    """A copy, a wait of the host in Python, a launch, compute that hides a collective, and what it leaves of it."""
    built = trace()
    built.operator("aten::copy_", at=0, lasts=20_000)
    built.launch("Memcpy HtoD", at=5_000, runs_at=10_000, lasts=10_000, category="gpu_memcpy")
    built.operator("aten::mm", at=60_000, lasts=10_000)
    built.launch("gemm", at=62_000, call_lasts=4_000, runs_at=70_000, lasts=30_000)
    built.launch("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", at=67_000, runs_at=80_000, lasts=50_000, stream=20)
    assert parts(built.load(), 0, 200_000) == [
        (10_000, 10_000, "memory"),
        (20_000, 40_000, "idle_python"),
        (60_000, 2_000, "idle_dispatch"),
        (62_000, 8_000, "idle_launch"),  # the call, and its way to the device
        (70_000, 30_000, "compute"),
        (100_000, 30_000, "communication"),
    ]


def test_a_window_cuts_what_straddles_it() -> None:
    built = trace()
    built.launch("gemm", at=0, runs_at=10_000, lasts=100_000)
    assert parts(built.load(), 50_000, 70_000) == [(50_000, 20_000, "compute")]


def test_of_a_device_that_is_not_there_nothing_is_said() -> None:
    built = trace()
    built.launch("gemm", at=0, runs_at=10_000, lasts=100_000)
    assert ledger_spans(built.load(), 3, (0, 2 * EPOCH_NS)).is_empty()
    assert ledger_spans(trace().load(), 0, (0, 2 * EPOCH_NS)).is_empty()
