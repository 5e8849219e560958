from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.memory.program import MIB, Program, forward, training

from whystall.errors import InputError
from whystall.memory.read import read_snapshot
from whystall.memory.snapshot import HOST, Action, Frame, Snapshot, State

SAMPLE = Path(__file__).resolve().parents[3] / "shared" / "samples" / "snapshot" / "mosaic-synthetic.pickle"


def read(folder: Path, value: object, protocol: int = 4) -> Snapshot:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(value, protocol))
    return read_snapshot(path)


FRAME = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["forward", "λ", ""]),
        "filename": st.sampled_from(["a.py", "??"]),
        "line": st.integers(0, 9),
    }
)
EVENT = st.fixed_dictionaries(
    {"action": st.sampled_from([action.name.lower() for action in Action if action >= 0 and action != Action.OOM])},
    optional={
        "addr": st.integers(0, 1 << 62),
        "size": st.integers(0, 1 << 40),
        "stream": st.integers(0, 1 << 47),
        "time_us": st.integers(0, 1 << 52),
        "frames": st.lists(FRAME, max_size=3),
        "compile_context": st.text(max_size=5),
        "user_metadata": st.sampled_from(["", "kv cache"]),
        "pool_id": st.tuples(st.integers(0, 3), st.integers(0, 3)),
    },
)


@settings(max_examples=150)
@given(st.lists(st.lists(EVENT, max_size=8), max_size=3), st.integers(2, 5))
def test_every_event_is_as_pickle_reads_it(
    tmp_path_factory: Any, traces: list[list[dict[str, Any]]], protocol: int
) -> None:
    got = read(tmp_path_factory.mktemp("read"), {"segments": [], "device_traces": traces}, protocol)

    told = {number: trace for number, trace in enumerate(traces) if trace}
    assert [record.device for record in got.devices] == list(told)
    for record in got.devices:
        events = record.events
        assert len(events) == len(told[record.device])
        latest = 0
        for row, event in enumerate(told[record.device]):
            assert Action(int(events.action[row])).name.lower() == event["action"]
            assert events.address[row] == event.get("addr", 0)
            assert events.size[row] == event.get("size", 0)
            assert events.stream[row] == event.get("stream", 0)
            frames = [Frame(one["name"], one["filename"], one["line"] or None) for one in event.get("frames", [])]
            assert list(got.frames.stack(int(events.stack[row]))) == frames
            assert text(got, events.context[row]) == event.get("compile_context")
            assert text(got, events.metadata[row]) == event.get("user_metadata")
            if "time_us" in event and events.time_us is not None:
                latest = max(latest, event["time_us"])
                assert events.time_us[row] >= latest


def text(snapshot: Snapshot, number: int) -> str | None:
    return snapshot.texts[number] if number >= 0 else None


def test_a_packed_snapshot_is_read_as_well(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle.gz"
    path.write_bytes(gzip.compress(pickle.dumps(training().snapshot())))

    assert len(read_snapshot(path).devices[0].events) == len(training().events)


def test_two_devices_stay_apart(tmp_path: Path) -> None:
    one, other = training(1), training(2)
    segments = one.segments() + [segment | {"device": 1} for segment in other.segments()]

    got = read(tmp_path, {"segments": segments, "device_traces": [one.events, other.events]})

    assert [len(record.events) for record in got.devices] == [len(one.events), len(other.events)]
    totals = [sum(segment["total_size"] for segment in program.segments()) for program in (one, other)]
    assert [int(record.segments.total.sum()) for record in got.devices] == totals


def test_a_device_without_events_is_kept(tmp_path: Path) -> None:
    segments = [segment | {"device": 3} for segment in training(1).segments()]

    got = read(tmp_path, {"segments": segments, "device_traces": [[], [], [], []]})

    assert [(record.device, len(record.events)) for record in got.devices] == [(3, 0)]


@pytest.mark.parametrize("top", [lambda segments: {"segments": segments}, lambda segments: segments])
def test_snapshots_of_torch_1_have_segments_with_histories(tmp_path: Path, top: Any) -> None:
    frames = [{"name": "f", "filename": "a.py", "line": 3}]
    older = [{"name": "g", "filename": "a.py", "line": 9}]
    blocks = [
        {"size": 1024, "state": "active_allocated",
         "history": [{"addr": 5 * MIB, "real_size": 700, "frames": frames},
                     {"addr": 5 * MIB, "real_size": 3, "frames": older}]},
        {"size": 512, "state": "inactive", "history": [{"addr": 5 * MIB + 1024, "real_size": 2, "frames": older}]},
        {"size": 2 * MIB - 1536, "state": "inactive"},
    ]  # fmt: skip
    segment = {
        "device": 0,
        "address": 5 * MIB,
        "total_size": 2 * MIB,
        "stream": 0,
        "segment_type": "small",
        "blocks": blocks,
    }

    got = read(tmp_path, top([segment]), 2).devices[0].blocks

    assert got.address.tolist() == [5 * MIB, 5 * MIB + 1024, 5 * MIB + 1536]
    assert got.requested.tolist() == [700, 0, 0]
    assert got.state.tolist() == [State.ACTIVE, State.INACTIVE, State.INACTIVE]
    assert got.stack[0] != got.stack[1]


def test_blocks_without_addresses_follow_each_other_in_their_own_segment(tmp_path: Path) -> None:
    def segment(at: int, sizes: list[int]) -> dict[str, Any]:
        blocks = [
            {"size": size, "requested_size": size, "state": "active_pending_free", "frames": []} for size in sizes
        ]
        return {
            "device": 0,
            "address": at,
            "total_size": sum(sizes),
            "stream": 0,
            "segment_type": "large",
            "blocks": blocks,
        }

    got = (
        read(tmp_path, {"segments": [segment(100, [10, 20]), segment(900, []), segment(500, [7, 8])]}).devices[0].blocks
    )

    assert got.address.tolist() == [100, 110, 500, 507]
    assert set(got.state.tolist()) == {State.AWAITING_FREE}


@pytest.mark.parametrize("nested", [True, False])
def test_pinned_host_memory_is_an_allocator_of_its_own(tmp_path: Path, nested: bool) -> None:
    host = Program()
    host.alloc(3 * MIB, forward(7))
    traces = [host.events] if nested else host.events

    got = read(tmp_path, training().snapshot() | {"host_segments": host.segments(), "host_traces": traces})

    assert [record.device for record in got.devices] == [0, HOST]
    assert len(got.devices[1].events) == len(host.events)
    assert int(got.devices[1].segments.total.sum()) == 20 * MIB


def test_spans_end_with_the_latest_open_one_of_their_name(tmp_path: Path) -> None:
    program = Program()
    program.alloc(1)
    start = program.time_us
    with program.marked("outer"), program.marked("inner"), program.marked("inner"):
        pass
    program._annotate("never", "START")
    program._annotate("stray", "END")

    spans = read(tmp_path, program.snapshot()).devices[0].annotations

    assert [span.name for span in spans] == ["outer", "inner", "inner", "never"]
    assert [None if span.end_us is None else span.end_us - start for span in spans] == [55, 45, 35, None]


def test_frames_of_compiled_code_know_what_they_were_compiled_from(tmp_path: Path) -> None:
    origin = 'File "/home/me/model.py", line 8, in forward\n    x = a @ b'
    frame = {"name": "call", "filename": "/cache/torchinductor_me/ab.py", "line": 70, "fx_original_trace": origin}
    event = {"action": "alloc", "addr": 4096, "size": 1, "stream": 0, "frames": [frame]}

    got = read(tmp_path, {"segments": [], "device_traces": [[event]]})

    assert got.frames.frames[0].origin == origin


def test_shared_and_repeated_stacks_are_one(tmp_path: Path) -> None:
    shared = [{"name": "f", "filename": "a.py", "line": 3}]
    events = [
        {"action": "alloc", "addr": at, "size": 1, "frames": shared if at % 2 else [dict(shared[0])]}
        for at in range(50)
    ]

    got = read(tmp_path, {"segments": [], "device_traces": [events]})

    assert len(got.frames) == 1
    assert set(got.devices[0].events.stack.tolist()) == {0}


def test_sizes_and_times_that_no_device_has_count_for_nothing(tmp_path: Path) -> None:
    odd: list[object] = [-5, 1 << 60, 1 << 80, "many", None, 2.6]
    events = [{"action": "alloc", "addr": at, "size": size, "time_us": size} for at, size in enumerate(odd)]

    got = read(tmp_path, {"segments": [], "device_traces": [events]}).devices[0].events

    assert got.size.tolist() == [0, 0, 0, 0, 0, 3]
    assert got.time_us is not None
    assert np.diff(got.time_us).min() >= 0


def test_what_was_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    program = training(40)
    whole = pickle.dumps(program.snapshot())
    path = tmp_path / "cut.pickle"
    seen = set()
    for share in (0.3, 0.6, 0.9, 0.999):
        path.write_bytes(whole[: int(len(whole) * share)])
        got = read_snapshot(path)
        events = got.devices[0].events
        assert "was cut off at byte" in got.warnings[0]
        assert events.address.tolist() == [event["addr"] for event in program.events[: len(events)]]
        seen.add(len(events))
    assert len(seen) > 2


@pytest.mark.parametrize("value", [{}, [], {"entries": []}, 7, None, [{"a": 1}]])
def test_another_pickle_is_no_snapshot(tmp_path: Path, value: object) -> None:
    with pytest.raises(InputError, match="no memory snapshot: it has neither segments nor device_traces"):
        read(tmp_path, value)


@pytest.mark.skipif(not SAMPLE.exists(), reason="the sample of mosaic is not here")
def test_mosaics_sample_is_read_as_pickle_reads_it() -> None:
    with SAMPLE.open("rb") as file:
        told = pickle.load(file)  # noqa: S301 - a sample that is known

    got = read_snapshot(SAMPLE)

    events = got.devices[0].events
    assert events.address.tolist() == [event["addr"] for event in told["device_traces"][0]]
    assert [text(got, context) for context in events.context] == [
        e.get("compile_context") for e in told["device_traces"][0]
    ]
    assert int(got.devices[0].blocks.size.sum()) == sum(b["size"] for s in told["segments"] for b in s["blocks"])
    assert len(got.devices[0].annotations) == sum(one["stage"] == "START" for one in told["external_annotations"])
