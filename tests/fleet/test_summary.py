"""What of a rank travels: it is small, and what it holds is what the trace held."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import RealTraces

from whystall.analysis.communication import communication_results
from whystall.analysis.trace_analysis import analyze_trace
from whystall.fleet import instances as module
from whystall.fleet.instances import KEY_COLUMNS, Instances, packed_instances
from whystall.fleet.summary import MOST_STEPS, RankSummary, renumbered, summary_of
from whystall.testing import trace

COLUMNS = {
    "collective": pl.String,
    "group": pl.String,
    "group_size": pl.Int64,
    "group_ranks": pl.String,
    "dtype": pl.String,
    "bytes": pl.Int64,
    "device": pl.Int64,
    "sequence_number": pl.Int64,
    "start": pl.Int64,
    "end": pl.Int64,
    "overlap": pl.Int64,
}
maybe = st.one_of(st.none(), st.sampled_from(["", "a", "allreduce", "[0, 1]"]))
number = st.one_of(st.none(), st.integers(0, 1 << 62))
rows = st.tuples(
    maybe, maybe, number, maybe, maybe, number, number, number, st.integers(0, 1 << 62), st.integers(0, 1 << 40)
).map(lambda row: (*row[:9], row[8] + row[9], row[9] // 2))


def table(found: list[Any]) -> pl.DataFrame:
    return pl.DataFrame(found, schema=COLUMNS, orient="row")


@given(st.lists(rows, max_size=30))
def test_packing_collectives_loses_nothing(found: list[Any]) -> None:
    packed = msgspec.msgpack.decode(msgspec.msgpack.encode(packed_instances(table(found))), type=Instances)
    order = ["start", "end", *KEY_COLUMNS, "sequence_number"]
    assert packed.table().sort(order).equals(table(found).sort(order))
    assert packed.table()["start"].is_sorted()
    assert packed.left_out == 0


def test_of_very_many_collectives_the_first_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_INSTANCES", 3)
    found = [("allreduce", None, None, None, None, None, None, None, start, start + 1, 0) for start in (5, 1, 4, 2, 3)]
    packed = packed_instances(table(found))
    assert packed.table()["start"].to_list() == [1, 2, 3]
    assert packed.left_out == 2


def test_columns_that_lie_about_their_length_are_refused() -> None:
    short = packed_instances(table([("a", None, None, None, None, None, None, None, 1, 2, 0)]))
    with pytest.raises(ValueError, match="shorter than it says"):
        msgspec.structs.replace(short, count=5).table()
    bomb = msgspec.structs.replace(short, start=zlib.compress(b"\0" * (8 << 20)))
    assert len(bomb.table()) == 1


@pytest.mark.real_traces
@pytest.mark.parametrize(
    "name", ["ddp-2rank-a100.json.gz", "recsys-2rank-v100.json.gz", "gloo-cpu-only-rank34.json.gz"]
)
def test_a_real_rank_is_small_and_the_same(name: str, real_traces: RealTraces) -> None:
    loaded = real_traces.load(name)
    analysis = analyze_trace(loaded)
    summary = summary_of(loaded, analysis)
    packed = msgspec.msgpack.encode(summary)
    assert msgspec.msgpack.decode(packed, type=RankSummary) == summary
    assert len(packed) <= 1_000_000 * max(loaded.source.raw_bytes / 1e9, 0.015)
    assert [device.ledger for device in summary.devices] == [device.ledger for device in analysis.devices]
    assert summary.instances.count == len(analysis.collectives.table) > 0
    assert communication_results(summary.instances.collectives(0), summary.links) == summary.communication


def test_of_many_steps_those_in_the_middle_are_kept() -> None:
    built = trace()
    for step in range(MOST_STEPS + 10):
        built.launch("gemm", at=step * 1000, runs_at=step * 1000 + 200, lasts=500, call_lasts=50)
        built.step(step, at=step * 1000, lasts=990)
    loaded = built.load()
    summary = renumbered(summary_of(loaded, analyze_trace(loaded)), 7)
    (device,) = summary.devices
    assert device.rank == 7
    assert [step.name for step in device.steps] == [f"ProfilerStep#{number}" for number in range(5, 5 + MOST_STEPS)]
