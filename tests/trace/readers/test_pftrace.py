"""Perfetto traces of PyTorch's profiler: the same tables as from its JSON, and what else may be in such a file."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.trace.readers.pftrace_builder import TOKEN, annotation, encoded, packets
from tests.trace.readers.reading import load, refusal, rows
from tests.trace.readers.wire import message, parsed

import whystall
from whystall.errors import InputError
from whystall.replay.graph_edges import edges_in_graphs
from whystall.testing import TraceBuilder, trace
from whystall.trace.cache import TraceCache
from whystall.trace.files import Limits
from whystall.trace.load import load_trace
from whystall.trace.model import TABLES
from whystall.trace.readers.pftrace.reader import PftraceReader

COMPARED = (
    "threads", "operators", "python_functions", "runtime_calls", "device_events", "annotations", "device_annotations",
    "steps", "collectives", "synchronizations", "other_events", "counters",
)  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "job.pftrace"


def job(steps: int = 3) -> TraceBuilder:
    """Everything that a window of the profiler holds and this format can say."""
    job = trace()
    reduced: dict[str, Any] = {
        "Collective name": "allreduce",
        "In msg nelems": 10,
        "dtype": "Float",
        "Group size": 2,
        "Seq": 5,
    }
    launched: dict[str, Any] = {
        "grid": [4, 2, 1],
        "block": [256, 1, 1],
        "registers per thread": 32,
        "context": 1,
        "queued": 3,
    }
    for step in range(steps):
        at = step * 1_000_000
        forward: dict[str, Any] = {
            "External id": 10 + step, "Sequence number": step, "Fwd thread id": 0, "Input Dims": [[8, 4], [], [4, 2]],
            "Input type": ["float", "", "Scalar"], "Concrete Inputs": ["", "", "1"], "Ev Idx": 7 * step,
        }  # fmt: skip
        (
            job.step(step, at=at, lasts=900_000)
            .python("train.py(7): main", at=at + 1_000, lasts=800_000, **{"Python id": 5, "Python parent id": 1})
            .python("nn.Module: Linear_0", at=at + 2_000, lasts=300_000, **{"Python id": 6, "Python module id": 0})
            .operator("aten::linear", at=at + 3_000, lasts=100_007, **forward)
            .operator("aten::addmm", at=at + 3_000, lasts=90_001)
            .launch("gemm<float>", at=at + 4_000, runs_at=at + 40_000, lasts=50_003, **launched)
            .operator("MmBackward0", at=at + 420_000, lasts=100_000, thread=200, **{"Fwd thread id": 1})
            .launch("gemm_bwd", at=at + 430_000, runs_at=at + 440_000, lasts=60_000, thread=200, **launched)
            .launch(
                "ncclDevKernel_AllReduce", at=at + 470_000, runs_at=at + 480_000, lasts=90_000, stream=20, **reduced
            )
            .annotation("Optimizer.step#Adam.step", at=at + 690_000, lasts=50_000)
            .runtime("cudaDeviceSynchronize", at=at + 760_000, lasts=100_000)
        )
        wait: dict[str, Any] = {"correlation": 9, "device": 0, "context": 1, "wait_on_cuda_event_record_corr_id": 3}
        job.event("cuda_sync", "Stream Wait Event", at=at + 5_000, lasts=10, stream=7, **wait)
        job.counter("SM Active (%)", 43.5 + step, at=at).counter("Power (mW)", 300_000 - step, at=at + 7)
        job.counter("SM Active (%)", 0.0, at=at, device=1)
    return job


def test_the_tables_are_those_of_the_json(path: Path) -> None:
    ours, theirs = load(path, encoded(job().json())), job().load()
    for table in COMPARED:
        mine, other = (getattr(one, table) for one in (ours, theirs))
        # The JSON of these tests names no threads.
        kept = [column for column in other.columns if (table, column) != ("threads", "name")]
        texts = {pl.Enum: pl.String, pl.Categorical: pl.String}
        assert mine.select(kept).cast(texts).equals(other.select(kept).cast(texts)), table
    assert len(ours.device_events) == 9
    assert ours.device_events["launch"].null_count() == ours.device_events["step"].null_count() == 0
    assert ours.metadata.framework == "pytorch"
    assert not ours.source.warnings


def test_edges_of_cuda_graphs_are_the_arrows_of_the_json(path: Path) -> None:
    """Of stages that wait for several, for one in another stream, and for one that comes later in the file."""
    built = trace()
    places = {"a": (7, 10_001, 50_003), "b": (9, 75_000, 40_000), "c": (20, 80_007, 1_000), "d": (7, 1_000, 500)}
    for name, (stream, at, lasts) in places.items():
        built.kernel(name, at=at, lasts=lasts, stream=stream, correlation=5)
    for number, (one, other) in enumerate((("a", "b"), ("a", "c"), ("d", "c"), ("d", "a")), 1 << 40):
        (stream, at, lasts), (into, begin, _) = places[one], places[other]
        built.arrow(number, at=at + lasts, into=begin, streams=(stream, into))
    ours, theirs = load(path, encoded(built.json())), built.load()
    for trace_ in (ours, theirs):
        names = trace_.device_events["name"].cast(str)
        before, after = edges_in_graphs(trace_)
        assert sorted(map("".join, zip(names[before], names[after], strict=True))) == ["ab", "ac", "da", "dc"]


def test_what_ran_on_a_device_is_exact_to_the_nanosecond_on_its_own_stream(path: Path) -> None:
    trace = load(path, encoded(job(1).json()))
    shape = ("name", "stream", "duration_ns", "grid", "block", "registers_per_thread", "context", "queued")
    assert rows(trace.device_events[:1], *shape) == [("gemm<float>", 7, 50_003, "[4, 2, 1]", "[256, 1, 1]", 32, 1, 3)]
    assert rows(trace.operators[:1], "input_dims", "sequence", "external_id", "duration_ns") == [
        ("[[8, 4], [], [4, 2]]", 0, 10, 100_007)
    ]


def test_the_report_is_that_of_the_json(path: Path, tmp_path: Path) -> None:
    path.write_bytes(gzip.compress(encoded(job(6).json())))
    job(6).write(tmp_path / "job.json")
    ours, theirs = (whystall.analyze(one, cache=False) for one in (path, tmp_path / "job.json"))
    assert ours.devices == theirs.devices
    assert ours.findings == theirs.findings
    assert ours.kernels == theirs.kernels
    assert ours.source.missing_signals == theirs.source.missing_signals


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_trace_is_known_by_content_whatever_it_is_called(tmp_path: Path, pack: Any) -> None:
    path = tmp_path / "trace.json"
    assert len(load(path, pack(encoded(job(1).json()))).device_events) == 3


def test_slices_in_the_order_of_time_end_where_the_last_one_began(path: Path) -> None:
    """As Perfetto's own library writes them."""
    names = message((12, message((2, message((1, 1), (2, "outer"))), (2, message((1, 2), (2, "inner"))),
                                 (1, message((1, 1), (2, "cpu_op"))))), (10, 3), (13, 1))  # fmt: skip
    track = message((60, message((1, 9), (4, message((1, 77), (2, 78), (5, "main"))))))
    slices = [
        message((8, at), (10, 3), (11, message((9, kind), (11, 9), (10, name), (3, 1))))
        for at, kind, name in ((1000, 1, 1), (2000, 1, 2), (3000, 2, None), (9000, 2, None))
    ]
    trace = load(path, packets([track, names, *slices]))
    assert rows(trace.operators, "name", "ts_ns", "duration_ns") == [("outer", 1000, 8000), ("inner", 2000, 1000)]
    assert rows(trace.threads, "pid", "tid", "name") == [("77", "78", "main")]


def test_names_are_those_of_their_sequence_until_it_clears_them(path: Path) -> None:
    def names(sequence: int, flags: int, name: str) -> bytes:
        told = message((2, message((1, 1), (2, name))), (24, message((1, 1), (2, "Kernel"))))
        return message((10, sequence), (13, flags), (12, told))

    def kernel(sequence: int, at: int) -> bytes:
        return message((8, at), (10, sequence), (53, message((2, 10), (14, 1), (20, 1))))

    content = packets(
        [
            message((8, 1), (10, 1)),
            names(1, 1, "a"),
            names(2, 1, "b"),
            kernel(1, 100),
            kernel(2, 200),
            names(1, 1, "c"),
            kernel(1, 300),
        ]
    )
    assert rows(load(path, content).device_events, "name", "ts_ns") == [("a", 100), ("b", 200), ("c", 300)]


def test_times_are_those_of_the_wall_clock(path: Path) -> None:
    clocks = message((1, message((1, 6), (2, 5000))), (1, message((1, 1), (2, 1_700_000_000_000_005_000))))
    specification = message((10, 1), (12, message((24, message((1, 1), (2, "Kernel"))))))
    kernel = message((8, 7000), (10, 1), (53, message((2, 10), (14, 1), (17, "k"))))
    trace = load(path, packets([message((8, 5000), (10, 1), (6, clocks)), specification, kernel]))
    assert rows(trace.device_events, "name", "ts_ns") == [("k", 1_700_000_000_000_007_000)]


def test_times_of_other_clocks_and_packed_packets_are_counted(path: Path) -> None:
    other = message((8, 5), (58, 64), (10, 1), (53, message((2, 10), (14, 1))))
    trace = load(path, encoded(job(1).json()) + packets([other, message((10, 1), (50, b"packed"))]))
    assert len(trace.device_events) == 3
    assert any("1 events were left out: their times are on a clock" in note for note in trace.source.warnings)
    assert any("1 packets are packed" in note for note in trace.source.warnings)


def test_slices_without_an_end_are_counted(path: Path) -> None:
    lost = message((8, 1_700_000_000_000_000_000), (10, 1), (11, message((9, 1), (11, 2), (10, 1), (3, 1))))
    trace = load(path, encoded(job(1).json()) + packets([lost]))
    assert any("1 events of the host have no end" in note for note in trace.source.warnings)


@pytest.mark.parametrize("share", [0.55, 0.6, 0.65, 0.9, 0.999])
def test_a_file_that_ends_early_gives_what_precedes_its_end(path: Path, share: float) -> None:
    content = encoded(job(9).json())
    trace = load(path, content[: int(len(content) * share)])
    known = set(rows(job(9).load().operators, "name", "ts_ns", "duration_ns"))
    assert set(rows(trace.operators, "name", "ts_ns", "duration_ns")) <= known
    assert len(trace.operators) + len(trace.annotations) + len(trace.python_functions)
    assert trace.source.truncated
    assert any("damaged or ends early" in note for note in trace.source.warnings)


@pytest.mark.parametrize("lost", [20, 60, 100, 170, 190])
def test_where_packets_are_lost_no_event_is_given_the_end_of_another(path: Path, lost: int) -> None:
    found = [bytes(value) for _, value in parsed(encoded(job(9).json())) if isinstance(value, bytes)]
    sound = job(9).load()
    for damage in ([], [b"\x0f" * 5]):
        trace = load(path, packets([*found[:lost], *damage, *found[lost + 1 :]]))
        for table in ("operators", "annotations", "python_functions", "runtime_calls"):
            ours, known = (rows(getattr(one, table), "name", "ts_ns", "duration_ns") for one in (trace, sound))
            assert set(ours) <= set(known)
        assert any("have no end" in note for note in trace.source.warnings)
        assert len(trace.device_events) == 27


def test_a_trace_of_something_else_is_refused_with_a_sentence(path: Path) -> None:
    system = packets([message((8, 5), (10, 1), (1, b"ftrace")), message((8, 9), (10, 1))])
    assert refusal(path, system).endswith("is a Perfetto trace that holds no event of a job of PyTorch")


@pytest.mark.parametrize("content", [b"\n\x05hello", b"\n", b"\n{\n}", b"\x08\x01", packets([b""])])
def test_other_messages_are_not_taken_for_traces(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(InputError, match="no format that whystall reads"):
        load_trace(path, cache=False, readers=[PftraceReader()])


def test_a_file_that_unpacks_to_more_than_a_recording_is_refused(path: Path) -> None:
    path.write_bytes(gzip.compress(encoded(job(1).json())))
    with pytest.raises(InputError, match="holds more than what is read"):
        load_trace(path, cache=False, limits=Limits(raw_bytes=1000))


def test_no_more_events_are_read_than_allowed(path: Path) -> None:
    path.write_bytes(encoded(job(3).json()))
    trace = load_trace(path, cache=False, limits=Limits(events=5))
    assert trace.source.events == 5
    assert any("the limit" in note for note in trace.source.warnings)


@pytest.mark.parametrize(("bound", "most"), [("reader.most_parts", 20), ("events._MOST_WAITING", 2)])
def test_a_file_of_absurdly_many_packets_is_read_so_far(
    path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    value = (lambda *_: most) if bound == "reader.most_parts" else most
    monkeypatch.setattr(f"whystall.trace.readers.pftrace.{bound}", value)
    kernel = message((8, 1_700_000_000_000_000_500), (10, 1), (53, message((2, 10), (14, 1), (17, "k"))))
    specification = message((10, 1), (12, message((24, message((1, 1), (2, "Kernel"))))))
    trace = load(path, packets([message((8, 1), (10, 1)), specification, kernel]) + encoded(job(3).json()))
    assert "k" in trace.device_events["name"].cast(pl.String).to_list()
    assert trace.source.truncated
    assert any("holds more than is read" in note for note in trace.source.warnings)


def test_what_is_attached_to_events_is_never_read(path: Path, tmp_path: Path) -> None:
    """Command lines of processes, the name of the process, and whatever annotation has no column."""
    more = [annotation("HF_TOKEN", TOKEN), annotation("env", [TOKEN]), message((1, 4), (6, TOKEN))]
    begin = message((9, 1), (11, 2), (10, 1), (3, 1), *((4, one) for one in more))
    extra = [message((8, 1_700_000_000_000_000_000), (10, 1), (11, begin)),
             message((8, 1_700_000_000_000_000_500), (10, 1), (11, message((9, 2), (11, 2))))]  # fmt: skip
    content = encoded(job(2).json()) + packets(extra)
    assert content.count(TOKEN.encode()) > 3
    found = load(path, content)
    assert len(found.operators) + len(found.annotations) == 2 * 5 + 1
    store = TraceCache(tmp_path / "kept", least_raw_bytes=0)
    assert store.write("key", found) is None
    report = whystall.analyze(path, cache=False)
    assert all(TOKEN not in whystall.render(report, name) for name in ("html", "markdown", "terminal", "json"))
    assert all(TOKEN not in getattr(found, table).write_json() for table in TABLES)
    kept = [file for file in (tmp_path / "kept").rglob("*") if file.is_file()]
    assert kept
    assert all(TOKEN.encode() not in file.read_bytes() for file in kept)
