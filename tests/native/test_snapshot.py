"""The native reader of pickles: what it refuses, what it bounds, and that whatever it reads it reads as Python does."""

from __future__ import annotations

import os
import pickle
import pickletools
import struct
from random import Random
from typing import Any

import pytest
from tests.fuzz.seeds import CASES, seeds

from whystall._native import SnapshotReader
from whystall.errors import InputError
from whystall.fleet.plain_pickle import loads

FRAMES = [{"name": f"f{at}", "filename": "a.py", "line": at} for at in range(3)]
EVENTS = [
    {"action": ("alloc", "free_requested", "free_completed")[at % 3], "addr": 1 << 40 | at // 3, "size": 512 * at,
     "stream": 0, "time_us": 1_700_000_000_000_000 + at, "frames": FRAMES[: at % 4], "pool_id": (0, at % 2)}
    for at in range(60)
]  # fmt: skip
BLOCK = {"address": 7, "size": 512, "requested_size": 5, "state": "active_allocated", "frames": FRAMES}
SEGMENT = {
    "device": 0, "address": 7, "total_size": 512, "stream": 0, "segment_type": "small", "segment_pool_id": [0, 0],
    "is_expandable": True, "frames": [], "blocks": [BLOCK],
}  # fmt: skip
MARKS = [{"name": "span", "stage": stage, "device": 0, "time_us": 9} for stage in ("START", "END")]
SNAPSHOT = {
    "segments": [SEGMENT],
    "device_traces": [EVENTS, []],
    "external_annotations": MARKS,
    "allocator_settings": {"garbage_collection_threshold": 0.5, "max_split_size": -1, "last": None},
}


def read(data: bytes, chunk: int = 1 << 20) -> SnapshotReader:
    reader = SnapshotReader()
    for at in range(0, len(data), chunk):
        reader.feed(data[at : at + chunk])
    reader.finish()
    return reader


def why(data: bytes) -> tuple[str, str]:
    failed = read(data).failure()
    assert failed is not None
    return failed[0], failed[1]


def told(reader: SnapshotReader) -> list[list[dict[str, Any]]]:
    """The events of each device, as the pickle held them."""
    texts, columns, frames = reader.texts(), reader.events(), reader.frames()
    ends = [0, *frames["stack_ends"].tolist()]
    named = list(zip(*(frames[key].tolist() for key in ("name", "file", "line")), strict=True))
    pools = reader.pools()

    def stack(number: int) -> list[dict[str, Any]]:
        chosen = frames["stack_frames"][ends[number] : ends[number + 1]].tolist() if number >= 0 else []
        return [dict(zip(("name", "filename", "line"), frame, strict=True)) for frame in map(frame_at, chosen)]

    def frame_at(at: int) -> tuple[str, str, int]:
        name, file, line = named[at]
        return texts[name], texts[file], line

    rows = list(zip(*(columns[key].tolist() for key in columns), strict=True))
    actions = ("alloc", "free_requested", "free_completed")
    return [
        [
            {"action": actions[row[0]], "addr": row[1], "size": row[2], "stream": row[3], "time_us": row[4],
             "frames": stack(row[5]), "pool_id": pools[row[8]]}
            for row in (rows[int(at)] for at in trace)
        ]
        for trace in reader.traces("device_traces")
    ]  # fmt: skip


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("chunk", [1, 7, 1000, 1 << 20])
def test_events_are_read_in_any_protocol_and_in_any_pieces(protocol: int, chunk: int) -> None:
    reader = read(pickle.dumps(SNAPSHOT, protocol), chunk)

    assert reader.failure() is None
    assert told(reader) == [EVENTS, []]
    assert reader.plain("allocator_settings") == SNAPSHOT["allocator_settings"]


def test_an_optimized_pickle_is_read_as_well() -> None:
    assert told(read(pickletools.optimize(pickle.dumps(SNAPSHOT, 4)))) == [EVENTS, []]


def test_lists_and_dicts_may_come_in_any_of_the_ways_that_build_them() -> None:
    # LIST, DICT, TUPLE and SETITEM one by one, which today's pickler does not write; POP, DUP and POP_MARK besides.
    event = b"(X\x06\0\0\0actionX\x05\0\0\0allocX\x04\0\0\0sizeK\x07X\x06\0\0\0framesNd"
    traces = b"((" + event + b"ll"
    data = b"\x80\x02}X\x0d\0\0\0device_traces" + traces + b"sN0N2(NN100."

    reader = read(data)

    assert reader.failure() is None
    assert [trace.tolist() for trace in reader.traces("device_traces")] == [[0]]
    assert reader.events()["size"].tolist() == [7]


class Hostile:
    """Whose pickle asks for a call."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /whystall-was-run",)


class Held:
    """An object with a state."""


@pytest.mark.parametrize(
    "value", [Hostile(), Held(), os.system, {"segments": [Hostile()]}, {1, 2}, b"bytes", bytearray(b"more"), 1j]
)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_is_no_plain_value_is_refused_and_not_run(value: object, protocol: int) -> None:
    kind, _ = why(pickle.dumps(value, protocol))

    assert kind == "refused"


INSTRUCTIONS = [
    b"cos\nsystem\n", b"\x93", b"R", b"b", b"ios\nsystem\n", b"o", b"\x81", b"\x92", b"P0\n", b"Q", b"\x82\1",
    b"\x83\1\1", b"\x84\1\1\1\1", b"I1\n", b"S'a'\n", b"V\n", b"F1\n", b"g0\n", b"p0\n", b"\x8f", b"\x90", b"\x91",
    b"\x96", b"\x97", b"\x98", b"B", b"C", b"\x8e", b"T", b"U", b"\0",
]  # fmt: skip


@pytest.mark.parametrize("code", INSTRUCTIONS)
def test_each_instruction_that_no_plain_value_needs_is_refused(code: bytes) -> None:
    assert why(b"\x80\x04" + code + b".")[0] == "refused"


LONG = 1 << 31
DAMAGED = {
    "no pickle": b"{}",
    "an older protocol": b"(dp0\n.",
    "a protocol to come": b"\x80\x09N.",
    "text that lies about its size": b"\x80\x04X" + struct.pack("<I", LONG) + b"short",
    "text of more than there is": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"short",
    "an integer of gigabytes": b"\x80\x04\x8b" + struct.pack("<I", LONG) + b"\1",
    "a memo that lies": b"\x80\x04h\x05.",
    "a memo that is far off": b"\x80\x04Nr" + struct.pack("<I", LONG) + b".",
    "a hole in the memo": b"\x80\x04Nr" + struct.pack("<I", 9) + b"h\x03.",
    "nothing to keep": b"\x80\x04\x94.",
    "a mark that is kept": b"\x80\x04(\x94.",
    "append without a list": b"\x80\x04NNa.",
    "append to a text": b"\x80\x04X\x01\0\0\0aNa.",
    "append to a tuple": b"\x80\x04)Na.",
    "append with nothing": b"\x80\x04a.",
    "appends without a mark": b"\x80\x04]e.",
    "appends to nothing": b"\x80\x04(e.",
    "items of a list": b"\x80\x04]NNs.",
    "a key without a value": b"\x80\x04}(Nu.",
    "a tuple of too few": b"\x80\x04N\x87.",
    "a tuple across a mark": b"\x80\x04N(N\x86.",
    "pop of nothing": b"\x80\x040.",
    "pop of a mark": b"\x80\x04(0.",
    "no mark to pop to": b"\x80\x041.",
    "dup of nothing": b"\x80\x042.",
    "an end inside": b"\x80\x04N(N.",
    "an end of nothing": b"\x80\x04.",
    "nothing at all": b"",
    "the first byte alone": b"\x80",
    "a folded dict that is added to": b"\x80\x04]}\x94(X\x06\0\0\0actionX\x05\0\0\0allocuah\x00X\x01\0\0\0aNs.",
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED.keys())
def test_damage_is_told_and_nothing_else_happens(data: bytes) -> None:
    kind, what = why(data)

    assert kind in {"damaged", "cut", "too much"}
    assert what


def test_a_text_that_is_not_unicode_is_read_with_marks() -> None:
    reader = read(b"\x80\x04}X\x08\0\0\0segments]X\x02\0\0\0\xff\xfeNs.")

    assert reader.failure() is not None  # "segments" has a value, and then a list gets an item: damage
    assert "��" in reader.texts()


def test_references_that_double_again_and_again_take_no_room() -> None:
    # Sixty lists, each of which holds the one before twice: 2 ** 60 values to whoever follows them.
    lists = b"]\x94" + b"".join(b"0](h" + bytes([at]) + b"h" + bytes([at]) + b"e\x94" for at in range(60))

    reader = read(b"\x80\x04}X\x12\0\0\0allocator_settings" + lists + b"s.")

    assert reader.failure() is None
    assert isinstance(reader.plain("allocator_settings"), list)


def test_a_list_that_holds_itself_is_no_trouble() -> None:
    reader = read(b"\x80\x04}X\x0d\0\0\0device_traces]\x94h\x00as.")

    assert [trace.tolist() for trace in reader.traces("device_traces")] == [[]]
    assert reader.plain("device_traces") is not None


def test_a_stack_named_a_million_times_is_looked_at_once() -> None:
    # A list of 300,000 numbers as the frames of 20,000 events: were it read for each, this would never end.
    frames = b"X\x06\0\0\0frames\x94](" + b"N" * 300_000 + b"e\x94"
    event = b"}(X\x06\0\0\0actionX\x05\0\0\0alloch\x00h\x01u"
    data = b"\x80\x04" + frames + b"00}X\x0d\0\0\0device_traces](](" + event * 20_000 + b"ees."

    reader = read(data)

    assert reader.failure() is None
    assert set(reader.events()["stack"].tolist()) == {-1}


def test_a_trace_named_again_is_one_device() -> None:
    event = b"}(X\x06\0\0\0actionX\x05\0\0\0allocu"
    trace = b"](" + event * 500 + b"e\x94"
    data = b"\x80\x04}X\x0d\0\0\0device_traces](" + trace + b"h\x00" * 50_000 + b"es."

    rows = read(data).traces("device_traces")

    assert [len(trace) for trace in rows[:3]] == [500, 0, 0]
    assert len(rows) <= 1024


def test_a_deep_nest_is_no_recursion() -> None:
    depth = 200_000
    reader = read(b"\x80\x04}X\x12\0\0\0allocator_settings" + b"]" * depth + b"a" * (depth - 1) + b"s.")

    assert reader.failure() is None
    assert isinstance(reader.plain("allocator_settings"), list)


def test_more_values_than_any_stack_are_too_many() -> None:
    reader = SnapshotReader()
    reader.feed(b"\x80\x04](")
    for _ in range(17):
        reader.feed(b"N" * (1 << 20))
    failed = reader.failure()

    assert failed is not None
    assert failed[0] == "too much"


def mutated(data: bytes, random: Random) -> bytes:
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(2, len(out))
        match random.randrange(5):
            case 0:
                out[at] = random.randrange(256)
            case 1:
                out[at] = random.choice(b"()]}aeusdlt0122.hjqrXKMJGN\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x94\x95")
            case 2:
                del out[at : at + random.randrange(1, 40)]
            case 3:
                out[at:at] = out[at : at + random.randrange(1, 60)] * random.choice((1, 2, 50))
            case _:
                other = random.randrange(2, len(out))
                out[at:at] = out[other : other + random.randrange(1, 60)]
        if len(out) < 4:
            break
    return bytes(out)


def test_damaged_pickles_are_read_as_python_reads_them_or_not_at_all() -> None:
    """Whatever both take for a snapshot, both take for the same one."""
    both = apart = 0
    for seed in seeds(CASES * 5):
        random = Random(seed)  # noqa: S311 - reproducible on purpose
        data = mutated(pickle.dumps(SNAPSHOT, random.choice((2, 4))), random)
        reader = read(data, random.choice((1 << 20, 13)))
        mine = [int(row) for trace in reader.traces("device_traces") for row in trace] if reader.done() else None
        try:
            theirs = loads(data)
        except InputError:
            continue
        if mine is None or not isinstance(theirs, dict):
            continue
        expected = sizes(theirs.get("device_traces"))
        if expected is None or len(expected) != len(EVENTS):
            continue
        if len(mine) != len(expected):  # a dict became an event only after it had been put into the list
            apart += 1
            continue
        both += 1
        assert reader.events()["size"][mine].tolist() == expected, seed
    assert both > CASES // 10
    assert apart <= CASES // 100


def sizes(traces: object) -> list[int] | None:
    """The sizes of all events, where each event is one as it should be."""
    if not isinstance(traces, list) or not all(isinstance(trace, list) for trace in traces):
        return None
    events = [event for trace in traces for event in trace]
    sound = all(
        isinstance(event, dict) and event.get("action") is not None and isinstance(event.get("size"), int)
        for event in events
    )
    return (
        [event["size"] for event in events] if sound and len({id(event) for event in events}) == len(events) else None
    )
