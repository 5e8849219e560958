"""Profiles of XLA: the recorded file beside a plain reading of it, and small ones that tests write."""

from __future__ import annotations

import gzip
import itertools
import os
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.trace.readers.reading import load, refusal, rows
from tests.trace.readers.wire import message, parsed, signed
from tests.trace.readers.xspace_builder import (
    BEGAN,
    TOKEN,
    US,
    Plane,
    environment,
    gpu,
    host,
    job,
    secretive,
    space,
    tpu,
)

import whystall
from whystall.errors import InputError
from whystall.trace.cache import TraceCache
from whystall.trace.files import Limits
from whystall.trace.load import load_trace
from whystall.trace.model import TABLES
from whystall.trace.readers.xspace.reader import XSpaceReader

SAMPLE = Path(__file__).resolve().parents[4] / "shared" / "samples" / "xplane" / "jax-conv-mi300x.xplane.pb"
US_NS = 1000
Message = dict[int, list[Any]]


@pytest.fixture(scope="module")
def sample() -> Path:
    if not SAMPLE.exists():
        if os.environ.get("WHYSTALL_REQUIRE_TRACES") == "1":
            pytest.fail("the sample is not beside the repository (../shared/samples)")
        pytest.skip("the sample is not beside the repository (../shared/samples)")
    return SAMPLE


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "host.xplane.pb"


def opened(data: bytes) -> Message:
    found: Message = {}
    for number, value in parsed(data):
        found.setdefault(number, []).append(value)
    return found


def table_of(plane: Message, number: int) -> dict[int, str]:
    """A plane's names of events (4) or of statistics (5)."""
    entries = [opened(entry) for entry in plane.get(number, [])]
    return {entry[1][0]: opened(entry[2][0]).get(2, [b""])[0].decode() for entry in entries}


def plainly(data: bytes) -> list[tuple[str, str, int, str, Fraction, Fraction, dict[str, Any]]]:
    """Plane, line, its number, name, begin and length in nanoseconds and numbers by name of every event in a file."""
    found = []
    for plane in map(opened, opened(data)[1]):
        names, stats = table_of(plane, 4), table_of(plane, 5)
        for line in map(opened, plane.get(3, [])):
            for event in map(opened, line.get(4, [])):
                told = {stats[one[1][0]]: one.get(3, one.get(4, [None]))[0] for one in map(opened, event.get(4, []))}
                begin = Fraction(signed(line.get(3, [0])[0])) + Fraction(event.get(2, [0])[0], 1000)
                lasts, place = Fraction(event.get(3, [0])[0], 1000), signed(line[1][0])
                name = names[event[1][0]]
                found.append((plane[2][0].decode(), line[2][0].decode(), place, name, begin, lasts, told))
    return found


@pytest.mark.real_traces
def test_every_line_of_the_recorded_file_is_told_as_it_stands(sample: Path) -> None:
    trace = load_trace(sample, cache=False)
    said = plainly(sample.read_bytes())
    began = next(
        opened(one)[3][0]
        for plane in map(opened, opened(sample.read_bytes())[1])
        if plane[2] == [b"Task Environment"]
        for one in plane[6]
        if table_of(plane, 5)[opened(one)[1][0]] == "profile_start_time"
    )
    expected = [
        (
            int(plane.rpartition(":")[2]), int(line.split("#")[1].split("(")[0]), name.removesuffix(".kd"),
            began + begin, lasts, told["correlation_id"],
        )
        for plane, line, _, name, begin, lasts, told in said
        if plane.startswith("/device:GPU:")
    ]  # fmt: skip
    found = rows(trace.device_events, "device", "stream", "name", "ts_ns", "duration_ns", "correlation")
    assert Counter(found) == Counter(expected)
    threads = trace.threads["tid"].to_list()
    others = Counter(
        (str(place), name.removeprefix("$"), began + begin, lasts)
        for plane, _, place, name, begin, lasts, _ in said
        if plane == "/host:CPU"
    )
    tables = (trace.runtime_calls, trace.python_functions, trace.annotations, trace.other_events)
    ours = [row for table in tables for row in rows(table, "thread", "name", "ts_ns", "duration_ns")]
    assert Counter((threads[thread], *row) for thread, *row in ours) == others
    assert len(found) + len(ours) == len(said) == trace.source.events
    assert not trace.source.warnings
    assert not trace.source.quarantined


@pytest.mark.real_traces
def test_launches_of_the_recorded_file_are_joined_as_it_says(sample: Path) -> None:
    trace = load_trace(sample, cache=False)
    said = plainly(sample.read_bytes())
    calls = {told["correlation_id"]: (place, name) for plane, _, place, name, _, _, told in said
             if plane == "/host:CPU" and "correlation_id" in told}  # fmt: skip
    expected = [calls.get(told["correlation_id"]) for plane, *_, told in said if plane.startswith("/device") and told]
    launch = trace.device_events.select("launch").join(
        trace.runtime_calls.with_row_index("launch").cast({"launch": pl.Int32}), on="launch", how="left"
    )
    threads = [int(tid) for tid in trace.threads["tid"]]
    found = [(threads[thread], name) if name else None for thread, name in rows(launch, "thread", "name")]
    assert Counter(found) == Counter(expected)


@pytest.mark.real_traces
def test_the_report_on_the_recorded_file_blames_nothing_that_was_not_seen(sample: Path) -> None:
    report = whystall.analyze(sample, cache=False)
    sums = Counter[int]()
    for plane, *_, lasts, _ in plainly(sample.read_bytes()):
        if plane.startswith("/device:GPU:"):
            sums[int(plane.rpartition(":")[2])] += int(lasts)
    assert {device.device: device.kernel_sum_ns for device in report.devices} == sums
    for device in report.devices:
        assert device.ledger.total_ns == device.window_ns
        assert (device.ledger.idle_python, device.ledger.idle_dispatch, device.ledger.idle_input) == (0, 0, 0)
        assert device.communication_ns == 0
    assert report.source.framework == "xla"
    assert report.verdict.cause is None
    assert "python" not in {part.what for part in report.critical_path}
    assert {"operators", "step marks", "Python stacks"} <= set(report.source.missing_signals)
    for form in ("terminal", "markdown"):
        shown = whystall.render(report, form)
        assert "tw003" not in shown
        assert not [word for word in ("torch", "ProfilerActivity", "profiler.step", "record_shapes") if word in shown]


def test_a_job_becomes_a_trace(path: Path) -> None:
    trace = load(path, job())
    base = BEGAN + 1000
    assert rows(trace.device_events[:2], "ts_ns", "duration_ns", "name", "kind", "device", "stream", "bytes") == [
        (base, 40_000, "loop_add_fusion", "kernel", 0, 17, None),
        (base + 50_000, 5_000, "Memcpy HtoD (Pinned -> Device)", "memcpy", 0, 18, 4096),
    ]
    shape = ("grid", "block", "registers_per_thread", "shared_memory_bytes", "occupancy_percent")
    assert rows(trace.device_events[:1], *shape) == [("[264, 1, 1]", "[256, 1, 1]", 32, 64, 50.0)]
    # 264 blocks of 8 warps on 132 processors
    assert rows(trace.device_events[:1], "blocks_per_sm", "warps_per_sm") == [(2.0, 16.0)]
    launched = trace.runtime_calls[trace.device_events["launch"].to_numpy()]["name"].cast(pl.String).to_list()
    assert launched == ["cuLaunchKernel", "cuMemcpyHtoDAsync", *["cuLaunchKernel"] * 3]
    assert rows(trace.threads, "pid", "tid", "name") == [(None, "583", "Host Threads/583"), (None, "7", "python")]
    assert rows(trace.python_functions, "name", "thread") == [("train.py:7 main", 1)]
    assert rows(trace.other_events, "name", "category") == [("ThreadpoolListener::StartRegion", "traceme")]
    device = trace.metadata.devices[0]
    assert (device.name, device.memory_bytes, device.compute_capability) == (None, 1 << 36, (9, 0))
    assert trace.metadata.framework == "xla"


def test_marked_steps_are_steps_and_hold_what_was_launched_in_them(path: Path) -> None:
    trace = load(path, job())
    assert rows(trace.steps, "name", "ts_ns", "duration_ns") == [
        (f"train {step}", BEGAN + 1000 + (100 * step - 20) * US_NS, 90 * US_NS) for step in range(4)
    ]
    assert trace.steps_from == "marks of steps on the host (jax.profiler.StepTraceAnnotation)"
    assert trace.device_events["step"].to_list() == [0, 0, 1, 2, 3]
    assert any("a step's work may be counted to the step after it" in note for note in trace.source.warnings)


def test_what_repeats_is_no_step_unless_it_is_marked(path: Path) -> None:
    """A pool's thread that does one thing after another covers its time better than any loop of a user's."""
    plane = Plane("/host:CPU")
    pool = [plane.event("BufferSequencingEvent::Execute", 10 * US * at, 10 * US) for at in range(9)]
    trace = load(path, space(gpu(), plane.line("tf_pjrt_thread_pool/1", *pool)))
    assert len(trace.annotations) == 9
    assert trace.steps.is_empty()
    assert trace.steps_from is None


def test_a_tpu_has_its_steps_and_operations_once(path: Path) -> None:
    trace = load(path, tpu())
    found = rows(trace.device_events.filter(pl.col("step") == 1), "name", "kind", "stream", "duration_ns")
    assert sorted(found) == sorted(
        [
            ("fusion.3", "accelerator", 0, 200_000),
            ("convolution.4", "accelerator", 0, 300_000),
            ("all-reduce.5", "accelerator", 0, 100_000),
        ]
    )
    beside = rows(trace.device_events.filter(pl.col("stream") == 1), "name", "duration_ns", "step")
    assert beside == [("copy-start.9", 100_000, 0), ("copy-start.8", 20_000, 0)]
    assert Counter(trace.device_annotations["name"].cast(pl.String)) == {"while.2": 3, "jit_train_step(123)": 3}
    assert trace.steps["name"].to_list() == ["step 0", "step 1", "step 2"]
    assert trace.metadata.device_name(0) == "TPU v5 lite"
    (device,) = whystall.analyze(path, cache=False).devices
    assert device.kind == "accelerator"
    assert device.compute_ns == 3 * 500_000
    assert device.communication_ns == 3 * 100_000
    # from 650 to 750 us, of which the collective leaves 50
    assert device.exposed_memory_ns == 50_000
    assert (device.ledger.idle_python, device.ledger.idle_unknown) == (0, device.idle_ns)


def test_lines_that_repeat_the_streams_count_once(path: Path) -> None:
    plane = gpu()
    derived = [plane.event("loop_add_fusion", 100 * US * step, 40 * US) for step in range(4)]
    trace = load(path, space(plane.line("XLA Ops", *derived, number=30, at_ns=1000), host()))
    assert len(trace.device_events) == 5
    assert any(note.startswith("4 events of lines that repeat others") for note in trace.source.warnings)


def test_picoseconds_are_rounded_to_the_nearest_so_that_what_touches_does_not_overlap(path: Path) -> None:
    plane = Plane("/device:GPU:0")
    ends = [0, 1_499, 2_500, 2_999, 10_001_499]
    events = [plane.event("k", begin, end - begin) for begin, end in itertools.pairwise(ends)]
    trace = load(path, space(plane.line("Stream #1(Kernel)", *events, at_ns=5)))
    assert rows(trace.device_events, "ts_ns", "duration_ns") == [(5, 1), (6, 2), (8, 0), (8, 9_998)]


def test_times_that_count_from_1970_already_are_left(path: Path) -> None:
    plane = Plane("/device:GPU:0")
    trace = load(path, space(plane.line("Stream #1", plane.event("k", 0, US), at_ns=BEGAN + 7), environment()))
    assert trace.device_events["ts_ns"].to_list() == [BEGAN + 7]


def test_names_that_are_missing_are_said_to_be(path: Path) -> None:
    line = message((1, 1), (2, "Stream #3(Kernel)"), (4, message((1, 12), (2, US), (3, US))))
    trace = load(path, message((1, message((2, "/device:GPU:2"), (3, line)))))
    assert rows(trace.device_events, "name", "device", "stream") == [("unnamed 12", 2, 3)]
    assert any("the names of 1 events are not in the file" in note for note in trace.source.warnings)


def test_what_was_only_counted_has_no_place_in_time(path: Path) -> None:
    plane = gpu()
    trace = load(path, space(plane.line("Stream #19(Kernel)", plane.counted("gemm", 100))))
    assert len(trace.device_events) == 5
    assert any("1 events were only counted" in note for note in trace.source.warnings)


def test_times_that_cannot_be_true_are_counted(path: Path) -> None:
    plane = gpu()
    odd = [plane.event("gemm", 0, -5 * US), plane.event("gemm", (1 << 63) - 1, US), plane.event("gemm", 0, 1 << 62)]
    trace = load(path, space(plane.line("Stream #19(Kernel)", *odd)))
    assert len(trace.device_events) == 5
    assert [(entry.reason, entry.events) for entry in trace.source.quarantined] == [("times that cannot be true", 3)]


def test_a_recording_of_devices_alone_says_so(path: Path) -> None:
    trace = load(path, space(gpu()))
    assert trace.source.warnings == ("the host was not recorded: why a device waited is not known",)


def test_what_the_profiler_complained_of_is_counted(path: Path) -> None:
    trace = load(path, space(gpu(), host(), warning="buffer full"))
    assert any("noted 1 errors and warnings" in note for note in trace.source.warnings)


@pytest.mark.parametrize("content", [job(), space(environment(), gpu()), gzip.compress(job()), tpu()])
def test_a_profile_is_known_by_content_whatever_it_is_called(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace.json"
    assert load(path, content).metadata.framework == "xla"


def test_a_plane_that_looks_like_json_is_none(path: Path) -> None:
    """A plane of 123 bytes begins like an object after a line break."""
    short = message((2, "/device:GPU:0"), (3, message((2, "Stream #1"), (4, message((1, 1), (2, 5), (3, 5))))))
    plane = short + message((9, "x" * (123 - len(short) - 2)))
    content = message((1, plane))
    assert content.startswith(b"\n{")
    assert len(load(path, content).device_events) == 1


@pytest.mark.parametrize(
    "content", [b"\n\x05hello", b"\n", message((1, message((2, "a plane"))), (2, "x")), b"\x08\x01"]
)
def test_other_messages_are_not_taken_for_profiles(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(InputError):
        load_trace(path, cache=False, readers=[XSpaceReader()])


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.999])
def test_a_file_that_ends_early_gives_what_precedes_its_end(path: Path, share: float) -> None:
    whole = space(gpu(0), gpu(1), gpu(2), gpu(3), host(), environment())
    trace = load(path, whole[: int(len(whole) * share)])
    assert len(trace.device_events) >= int(share * 4) * 5
    assert trace.source.truncated
    assert any("is damaged or ends early" in note for note in trace.source.warnings)


def test_damage_in_one_plane_leaves_the_others(path: Path) -> None:
    spoilt = gpu(0).encoded().replace(b"Stream #17", b"Stream #17"[:-2] + b"\xff\xff")
    first = message((1, spoilt[:40] + b"\x0f" * 40 + spoilt[80:]))
    trace = load(path, first + space(gpu(1), host()))
    assert len(trace.device_events.filter(pl.col("device") == 1)) == 5
    assert trace.source.truncated


@pytest.mark.parametrize("content", [space(environment()), space(host()), space(Plane("/device:GPU:0"))])
def test_a_recording_without_a_device_is_refused(path: Path, content: bytes) -> None:
    assert "host.xplane.pb holds no event of a GPU or a TPU: in a job on the CPU alone" in refusal(path, content)


def test_a_file_of_which_nothing_is_left_says_why(path: Path) -> None:
    assert refusal(path, job()[:40]).endswith("bytes of a field are missing)")


def test_a_file_that_unpacks_to_more_than_a_recording_is_refused(path: Path) -> None:
    path.write_bytes(gzip.compress(job()))
    with pytest.raises(InputError, match="holds more than what is read"):
        load_trace(path, cache=False, limits=Limits(raw_bytes=1000))


def test_no_more_events_are_read_than_allowed(path: Path) -> None:
    path.write_bytes(job())
    trace = load_trace(path, cache=False, limits=Limits(events=3))
    assert trace.source.events == 3
    assert trace.source.truncated
    assert any("holds more than is read (3 events)" in note for note in trace.source.warnings)


@pytest.mark.parametrize(("bound", "most"), [("_MOST_PARTS", 150), ("_MOST_LISTED", 4), ("_MOST_PLANES", 1)])
def test_a_file_of_absurdly_many_parts_is_read_so_far(
    path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    monkeypatch.setattr(f"whystall.trace.readers.xspace.space.{bound}", most)
    trace = load(path, space(gpu(0), gpu(1), host()))
    assert not trace.device_events.is_empty()
    assert trace.runtime_calls.is_empty()
    assert trace.source.truncated


def test_a_packed_file_of_a_few_bytes_holds_no_millions_of_events(path: Path) -> None:
    """Two bytes an event, a thousandth of that packed."""
    many = message((2, "Stream #1")) + b"\x22\x00" * 1_500_000
    trace = load(path, gzip.compress(message((1, message((2, "/device:GPU:0"), (3, many)))), 1))
    assert len(trace.device_events) == 1 << 20
    assert any("holds more than is read" in note for note in trace.source.warnings)


def test_an_event_that_cannot_be_read_costs_no_other(path: Path) -> None:
    plane = gpu()
    trace = load(
        path, space(plane.line("Stream #20(Kernel)", b"\x0f" * 9, plane.event("gemm", 5 * US, US), at_ns=1000))
    )
    assert "gemm" in trace.device_events["name"].cast(pl.String).to_list()
    assert any("1 events cannot be read" in note for note in trace.source.warnings)


def test_what_is_attached_to_a_profile_is_never_read(path: Path, tmp_path: Path) -> None:
    path.write_bytes(secretive())
    assert TOKEN.encode() in path.read_bytes()
    store = TraceCache(tmp_path / "kept", least_raw_bytes=0)
    found = load_trace(path, cache=False)
    assert store.write("key", found) is None
    report = whystall.analyze(path, cache=False)
    assert report.devices[0].gpu_events == 4
    assert all(TOKEN not in whystall.render(report, name) for name in ("html", "markdown", "terminal", "json"))
    assert all(TOKEN not in getattr(found, table).write_json() for table in TABLES)
    assert TOKEN not in repr((found.source, found.metadata))
    kept = [file for file in (tmp_path / "kept").rglob("*") if file.is_file()]
    assert kept
    assert all(TOKEN.encode() not in file.read_bytes() for file in kept)
