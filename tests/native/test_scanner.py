"""The scanner equals stdlib json: every value of every event, however the bytes are laid out and cut."""

from __future__ import annotations

import gzip
import json
import math
import os
from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import RealTraces

from whystall._native import Scanner

MISSING = -(2**63)
KINDS = ("integer", "float", "text", "raw")
# Keys that have a column of their own; all others of an event are kept as arguments named ".key".
FIXED = {"ph", "cat", "name", "pid", "tid", "ts", "dur", "args"}

Event = dict[str, Any]


def scanned(document: bytes, *cuts: int, keep: tuple[str, ...] = ()) -> Scanner:
    scanner = Scanner(keep, 1 << 31, 16 << 20)
    edges = [0, *sorted(cut % (len(document) + 1) for cut in cuts), len(document)]
    for begin, end in pairwise(edges):
        scanner.feed(document[begin:end])
    scanner.finish()
    return scanner


def bytewise(document: bytes) -> Scanner:
    return scanned(document, *range(1, len(document)))


def events_of(scanner: Scanner) -> list[Event]:
    """What the columns say, as one dict per event: rows of each category in order, categories by name."""
    names, threads = scanner.names(), scanner.threads()
    out = []
    for table in sorted(scanner.take_tables(), key=lambda table: (table["category"], table["metadata"])):
        arguments: list[Event] = [{} for _ in range(table["rows"])]
        for key, kind, rows, values in table["arguments"]:
            where = range(len(values)) if rows is None else rows.tolist()
            if KINDS[kind] in ("text", "raw"):
                texts = scanner.texts(values.astype(np.int32))
                shown = [(KINDS[kind], text) for text in texts]
            else:
                shown = [(KINDS[kind], value) for value in values.tolist()]
            for row, value in zip(where, shown, strict=True):
                assert key not in arguments[row], "one value per key"
                arguments[row][key] = value
        out += [
            {
                "category": table["category"],
                "phase": chr(table["phase"][row]),
                "name": names[table["name"][row]],
                "thread": threads[table["thread"][row]],
                "start": int(table["start"][row]),
                "duration": int(table["duration"][row]),
                "arguments": arguments[row],
            }
            for row in range(table["rows"])
        ]
    return out


def nanoseconds(value: Any) -> int:
    if value is None:
        return MISSING
    return int((Decimal(str(value)) * 1000).to_integral_value())


def label(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def argument(value: Any) -> tuple[str, Any]:
    if isinstance(value, str):
        return "text", value
    if isinstance(value, Decimal):
        return "float", float(value)
    if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63:
        return "integer", value
    return "raw", value


def expected(events: list[Event]) -> list[Event]:
    """The oracle: what stdlib json says of each event, in the scanner's order."""
    out = []
    for event in events:
        others = {f".{key}": value for key, value in event.items() if key not in FIXED}
        given_arguments = event.get("args") or {}
        thread = tuple(
            part if part is None or isinstance(part, str | int) else json.dumps(part)
            for part in (event.get("pid"), event.get("tid"))
        )
        out.append(
            {
                "category": label(event.get("cat")),
                "phase": event["ph"],
                "name": label(event.get("name")),
                "thread": thread,
                "start": nanoseconds(event.get("ts")),
                "duration": nanoseconds(event.get("dur")),
                "arguments": {
                    key: argument(value) for key, value in {**others, **given_arguments}.items() if value is not None
                },
            }
        )
    return sorted(out, key=lambda event: (event["category"], event["phase"] == "M"))


def decoded(event: Event) -> Event:
    """An event whose raw arguments are parsed, so that their blanks and escapes do not matter."""
    arguments = {
        key: (kind, json.loads(value, parse_float=Decimal) if kind == "raw" else value)
        for key, (kind, value) in event["arguments"].items()
    }
    return {**event, "arguments": arguments}


def check(scanner: Scanner, document: str) -> None:
    parsed = json.loads(document.removeprefix("\ufeff"), parse_float=Decimal)
    events = parsed if isinstance(parsed, list) else parsed["traceEvents"]
    assert [decoded(event) for event in events_of(scanner)] == expected(events)
    assert scanner.counts()["events"] == len(events)
    assert scanner.counts()["broken"] == 0


# --- random documents ---------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ['"', "\\", "\\\\", '{"ph"', "a" * 300, "é😀", "\u2028", "stream 7", "\x00", "null", "}", "]"]
)
INTEGERS = st.integers(-(2**70), 2**70) | st.sampled_from(
    [0, -1, *(sign * 2**bits + step for bits in (7, 15, 31, 63) for sign in (1, -1) for step in (-1, 0, 1))]
)
DECIMALS = st.decimals(-(10**6), 10**6, places=4)
VALUES = st.recursive(
    st.none() | st.booleans() | INTEGERS | DECIMALS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
ARGUMENT_KEYS = st.sampled_from(
    ["stream", "device", "correlation", "Ev Idx", "bytes", "Bytes", "", "key with \\ and é"]
)
TIMES = st.none() | st.integers(0, 10**15) | st.decimals(0, 10**15, places=3) | st.decimals(0, 10**9, places=2)
THREADS = st.none() | st.integers(-(2**63), 2**63 - 1) | TEXTS
FIELDS = {
    "cat": st.none() | st.sampled_from(["kernel", "cpu_op", "", "Kernel", "ünï"]),
    "name": st.none() | TEXTS,
    "pid": THREADS,
    "tid": THREADS,
    "ts": TIMES,
    "dur": TIMES,
    "id": st.none() | INTEGERS | TEXTS,
    "bp": st.none() | st.just("e"),
    "s": st.none() | st.just("t"),
    "tts": st.none() | INTEGERS,
    "args": st.dictionaries(ARGUMENT_KEYS | TEXTS, VALUES, max_size=6),
}


@st.composite
def events(draw: st.DrawFn) -> Event:
    event: Event = {"ph": draw(st.sampled_from("XXXiMsfC"))}
    for key in draw(st.permutations(list(FIELDS))):
        if draw(st.integers(0, 5)):
            event[key] = draw(FIELDS[key])
    if draw(st.booleans()):  # Kineto writes the phase first, others do not
        event["ph"] = event.pop("ph")
    return event


def written(value: Any, *, ascii_only: bool, separators: tuple[str, str], pad: str) -> str:
    """JSON text; decimals keep their digits."""

    def write(item: Any) -> str:
        if isinstance(item, Decimal):
            return format(item, "f")
        if isinstance(item, dict):
            pairs = [f"{write(key)}{separators[1]}{write(value)}" for key, value in item.items()]
            return "{" + pad + f"{separators[0]}{pad}".join(pairs) + pad + "}"
        if isinstance(item, list):
            return "[" + pad + f"{separators[0]}{pad}".join(map(write, item)) + pad + "]"
        return json.dumps(item, ensure_ascii=ascii_only)

    return write(value)


@st.composite
def documents(draw: st.DrawFn) -> str:
    listed = draw(st.lists(events(), max_size=6))
    how: dict[str, Any] = {
        "ascii_only": draw(st.booleans()),
        "separators": draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", "\n : ")])),
        "pad": draw(st.sampled_from(["", " ", "\n  ", "\r\n" + " " * 40])),
    }
    if draw(st.integers(0, 4)) == 0:
        body = written(listed, **how)
    else:
        before = draw(st.dictionaries(st.sampled_from(["schemaVersion", "with_stack", "a"]), VALUES))
        after = draw(st.dictionaries(st.sampled_from(["traceName", "displayTimeUnit"]), VALUES))
        body = written({**before, "traceEvents": listed, **after}, **how)
    return draw(st.sampled_from(["", "", "\ufeff", "\n "])) + body


@given(documents(), st.lists(st.integers(0, 10**6), max_size=8))
@settings(max_examples=300)
def test_every_value_equals_stdlib_json(document: str, cuts: list[int]) -> None:
    check(scanned(document.encode(), *cuts), document)


@given(documents())
@settings(max_examples=60)
def test_bytes_that_come_one_by_one(document: str) -> None:
    check(bytewise(document.encode()), document)


LISTS = st.recursive(
    INTEGERS | TEXTS | st.sampled_from(["[", "],", ": ", "x" * 63, ""]),
    lambda inner: st.lists(inner, max_size=9),
    max_leaves=30,
).filter(lambda value: isinstance(value, list)) | st.dictionaries(TEXTS, st.lists(INTEGERS, max_size=2), max_size=2)


@given(st.lists(LISTS, max_size=4), st.lists(st.integers(0, 10**6), max_size=3))
@settings(max_examples=200)
def test_a_list_has_one_text_however_it_is_written(made: list[Any], cuts: list[int]) -> None:
    layouts: list[dict[str, Any]] = [{}, {"indent": 4}, {"separators": (",", ":")}, {"indent": "\t" * 20}]
    said = [json.dumps(value, ensure_ascii=False) for value in made for _ in layouts]
    ways = [json.dumps(value, ensure_ascii=False, **layout) for value in made for layout in layouts]
    document = "[" + ",".join(f'{{"ph":"X","args":{{"a":{way}}}}}' for way in ways) + "]"
    found = events_of(scanned(document.encode(), *cuts))
    assert [event["arguments"]["a"] for event in found] == [("raw", text) for text in said]


def test_lists_that_are_no_utf8_keep_their_own_blanks() -> None:
    one, other = b'["\xff", "\\n"]', b'["\xff",  "\n"]'
    document = b"[" + b",".join(b'{"ph":"X","args":{"a":%s}}' % way for way in (one, other, one, other)) + b"]"
    found = [event["arguments"]["a"] for event in events_of(scanned(document))]
    assert found[:2] == found[2:]


def test_more_lists_than_are_kept_as_they_are_written() -> None:
    made = [[number, "x" * 5000] for number in range(500)] * 2
    (table,) = scanned(
        json.dumps([{"ph": "X", "args": {"a": value}} for value in made], indent=1).encode()
    ).take_tables()
    (_, _, _, ids) = table["arguments"][0]
    assert ids.tolist() == [*range(500), *range(500)]


def test_reading_from_a_descriptor(tmp_path: Path) -> None:
    document = json.dumps({"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": i} for i in range(1000)]})
    path = tmp_path / "trace.json"
    path.write_text(document)
    scanner = Scanner((), 1 << 31, 1 << 20)
    descriptor = os.open(path, os.O_RDONLY)
    while scanner.read(descriptor, 7):
        pass
    os.close(descriptor)
    scanner.finish()
    check(scanner, document)


@pytest.mark.parametrize(
    ("written_escape", "meant"),
    [
        (r"\u00e9", "é"),
        (r"\ud83d\ude00", "😀"),
        (r"\ud83d", "\ufffd"),
        (r"\ude00x", "\ufffdx"),
        (r"\ud83d\u0041", "\ufffdA"),
        (r"\/\b\f\n\r\t\"\\", '/\b\f\n\r\t"\\'),
        (r"C:\Users", r"C:\Users"),
        (r"\u12", r"\u12"),
        (r"\x41", r"\x41"),
    ],
)
def test_escapes_and_what_is_none(written_escape: str, meant: str) -> None:
    document = f'{{"traceEvents":[{{"ph":"X","cat":"c","name":"{written_escape}","args":{{"k":"{written_escape}"}}}}]}}'
    (event,) = events_of(scanned(document.encode()))
    assert (event["name"], event["arguments"]["k"]) == (meant, ("text", meant))


def test_bytes_that_are_no_utf8_become_replacement_characters() -> None:
    (event,) = events_of(scanned(b'[{"ph":"X","name":"a\xff\xc3(\xed\xa0\x80b"}]'))
    assert event["name"].startswith("a\ufffd\ufffd(")
    assert event["name"].endswith("b")


def test_equal_texts_share_one_id_however_they_are_written() -> None:
    scanner = scanned(rb'[{"ph":"X","name":"\u0041"},{"ph":"X","name":"A"},{"ph":"\u0058","name":"A"}]')
    assert scanner.names().count("A") == 1
    assert [event["phase"] for event in events_of(scanner)] == ["X", "X", "X"]


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ('{"a":1,"a":2}', {"a": ("integer", 2)}),
        ('{"a":1,"b":0,"a":"x"}', {"a": ("text", "x"), "b": ("integer", 0)}),
        ('{"a":[1],"a":1.5}', {"a": ("float", 1.5)}),
        ('{"a":1,"a":null}', {}),
        ('{"a":null,"a":1}', {"a": ("integer", 1)}),
        (r'{"a":1,"\u0061":2}', {"a": ("integer", 2)}),
    ],
)
def test_the_last_of_repeated_keys_counts(arguments: str, meant: Event) -> None:
    document = f'{{"traceEvents":[{{"ph":"X","args":{{"a":7}}}},{{"ph":"X","args":{arguments}}}]}}'
    assert events_of(scanned(document.encode()))[1]["arguments"] == meant


def test_repeated_fields_of_an_event() -> None:
    (event,) = events_of(
        scanned(b'[{"ph":"B","ph":"X","ts":1,"ts":2,"tid":"a","tid":3,"name":"a","name":"b","pid":1}]')
    )
    assert (event["phase"], event["start"], event["thread"], event["name"]) == ("X", 2000, (1, 3), "b")


# --- numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("0", 0),
        ("1712195495519689.047", 1712195495519689047),
        ("1712195495519689.0475", 1712195495519689048),
        ("9200000000000000", 9_200_000_000_000_000_000),
        ("0.0004", 0),
        ("0.9996", 1000),
        ("1.7121954955e15", 1712195495500000000),
        ("1.712195495519689e15", 1712195495519689000),
        ("1.712195495519689E+15", 1712195495519689000),
        ("5e-1", 500),
        ("9.9999999e2", 1000000),
        ('"12.5"', 12500),
        ("-1", MISSING),
        ("NaN", MISSING),
        ("1e400", MISSING),
        ("true", MISSING),
        ("[1]", MISSING),
        ('""', MISSING),
        ('"soon"', MISSING),
        ("99999999999999999999999", MISSING),
        # too large for microseconds since 1970: unscaled, and marked by the sign
        ("1712195495519689047", -1712195495519689047),
    ],
)
def test_start_times(text: str, meant: int) -> None:
    (event,) = events_of(scanned(f'[{{"ph":"X","ts":{text}}}]'.encode()))
    assert event["start"] == meant


@given(st.integers(0, 9_199_999_999_999_999), st.integers(0, 999))
def test_times_with_three_places_are_exact(whole: int, thousandths: int) -> None:
    (event,) = events_of(
        scanned(f'[{{"ph":"X","ts":{whole}.{thousandths:03},"dur":{whole}.{thousandths:03}}}]'.encode())
    )
    assert event["start"] == event["duration"] == whole * 1000 + thousandths


@given(st.floats(0, 9e15, allow_nan=False))
@settings(max_examples=300)
def test_times_with_an_exponent_are_the_nearest_nanosecond(value: float) -> None:
    (event,) = events_of(scanned(f'[{{"ph":"X","ts":{value:.17e}}}]'.encode()))
    assert abs(event["start"] - Decimal(value) * 1000) <= Decimal("0.5")


@given(st.lists(INTEGERS.filter(lambda value: -(2**63) <= value < 2**63), min_size=1, max_size=50))
def test_integer_columns_widen_as_needed(values: list[int]) -> None:
    document = json.dumps({"traceEvents": [{"ph": "X", "args": {"k": value}} for value in values]})
    (table,) = scanned(document.encode()).take_tables()
    ((_, _, rows, column),) = table["arguments"]
    assert rows is None
    assert column.tolist() == values
    widest = max(next(b for b in (1, 2, 4, 8) if -(2 ** (8 * b - 1)) <= value < 2 ** (8 * b - 1)) for value in values)
    assert column.dtype.itemsize == widest


@given(st.lists(st.none() | st.integers(-300, 300) | st.floats(allow_nan=False, allow_infinity=False), max_size=40))
def test_columns_with_gaps_know_their_rows(values: list[int | float | None]) -> None:
    document = json.dumps(
        {"traceEvents": [{"ph": "X", "args": {} if value is None else {"k": value}} for value in values]}
    )
    found = [event["arguments"].get("k", (None, None))[1] for event in events_of(scanned(document.encode()))]
    assert found == values


def test_numbers_beyond_64_bits_stay_exact_as_text() -> None:
    (event,) = events_of(scanned(b'[{"ph":"X","args":{"a":9223372036854775808,"b":-9223372036854775809,"c":1e999}}]'))
    assert event["arguments"] == {
        "a": ("raw", "9223372036854775808"),
        "b": ("raw", "-9223372036854775809"),
        "c": ("raw", "1e999"),
    }


@pytest.mark.parametrize(
    "odd", ["inf", "-inf", "nan", "NaN", "Infinity", "-Infinity", "N/A", "-", "+1", "0x10", "1.2.3"]
)
def test_values_that_json_does_not_know_are_kept_as_written(odd: str) -> None:
    first, second = events_of(scanned(f'[{{"ph":"X","args":{{"k":{odd},"l":1}}}},{{"ph":"X"}}]'.encode()))
    assert first["arguments"] == {"k": ("raw", odd), "l": ("integer", 1)}
    assert second["arguments"] == {}


# --- size ---------------------------------------------------------------------------------------------


def test_strings_longer_than_any_chunk() -> None:
    texts = ["x" * 700_000, "é" * 300_000, "\\" * 100_000, '"' * 70_000]
    document = json.dumps({"traceEvents": [{"ph": "X", "name": text, "args": {"k": text}} for text in texts]})
    scanner = scanned(document.encode(), *range(0, len(document), 65_536))
    check(scanner, document)


def test_thousands_of_keys() -> None:
    listed = [{"ph": "X", "cat": f"c{i % 7}", "args": {f"k{i}": i, f"k{i // 2}": -i}} for i in range(3000)]
    document = json.dumps({"traceEvents": listed})
    check(scanned(document.encode()), document)


def test_more_keys_than_any_trace_has_are_counted() -> None:
    count = 70_000
    document = json.dumps({"traceEvents": [{"ph": "X", "args": {f"k{i}": i}} for i in range(count)]})
    scanner = scanned(document.encode(), *range(0, len(document), 1000))
    counts = scanner.counts()
    kept = sum(len(event["arguments"]) for event in events_of(scanner))
    assert counts["events"] == count
    assert kept + counts["unnamed_arguments"] == count
    assert kept > 60_000


def test_more_categories_than_any_trace_has_are_kept_as_arguments() -> None:
    listed = [{"ph": "X", "cat": f"c{i}", "name": f"n{i}", "args": {"k": i}} for i in range(2000)]
    found = events_of(scanned(json.dumps({"traceEvents": listed}).encode()))
    category = {event["name"]: event["arguments"].get(".cat", ("text", event["category"]))[1] for event in found}
    assert category == {f"n{i}": f"c{i}" for i in range(2000)}
    assert len({event["category"] for event in found}) < 1100


def test_a_value_over_the_limit_is_passed_over() -> None:
    scanner = Scanner((), 1 << 31, 100_000)
    body = b'{"traceEvents":[{"ph":"X","name":"' + b"x" * 1_000_000 + b'"},{"ph":"X","name":"after","ts":1}]}'
    for begin in range(0, len(body), 5_000):
        scanner.feed(body[begin : begin + 5_000])
    scanner.finish()
    assert [event["name"] for event in events_of(scanner)] == ["after"]
    assert scanner.counts()["broken"] > 0


def test_the_event_limit() -> None:
    scanner = Scanner((), 3, 1 << 20)
    scanner.feed(json.dumps([{"ph": "X"}] * 10).encode())
    scanner.finish()
    assert scanner.counts()["events"] == 3
    assert scanner.counts()["over_limit"]


@pytest.mark.parametrize("bracket", [b"[", b'{"a":', b'[{"a":['])
def test_deep_nesting_needs_no_stack(bracket: bytes) -> None:
    nested = bracket * 200_000
    scanner = scanned(b'{"traceEvents":[{"ph":"X","name":"a"},{"ph":"X","name":"b","args":{"k":' + nested)
    assert [event["name"] for event in events_of(scanner)] == ["a"]
    balanced = b"[" * 200_000 + b"]" * 200_000
    scanner = scanned(b'[{"ph":"X","name":"b","args":{"k":' + balanced + b"}}]")
    assert scanner.counts()["events"] == 1


@pytest.mark.parametrize("unit", ['{"x":{"x":{},', '{"x":[[},', '{"a":{},', "{  ", '{"x":"\\', "},{", '},{"x":{"x":'])
@pytest.mark.parametrize("tail", ["", "]" * 60_000, "!" * 10])
def test_nothing_makes_resynchronising_quadratic(unit: str, tail: str) -> None:
    """Would not end within minutes if each of the places were tried to the end of the file."""
    document = ('[{"name":"first","ph":"X"},' + unit * (6_000_000 // len(unit)) + tail).encode()
    scanner = scanned(document, *range(0, len(document), 262_144))
    assert scanner.counts()["events"] >= 1


# --- damage -------------------------------------------------------------------------------------------

SMALL = [
    {
        "ph": "X",
        "cat": "kernel",
        "name": "a",
        "pid": 0,
        "tid": 7,
        "ts": 1.5,
        "dur": 2,
        "args": {"k": [1, {"x": "y"}], "l": "}"},
    },
    {"ph": "X", "cat": "kernel", "name": "b\\é", "pid": 0, "tid": "stream 7", "ts": 3, "dur": 4.25, "args": {}},
    {"ph": "s", "cat": "ac2g", "name": "c", "pid": 1, "tid": 2, "ts": 3, "id": 9, "bp": "e"},
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "main"}},
]


@pytest.mark.parametrize("indent", [None, 2])
def test_truncation_keeps_the_events_before_it(indent: int | None) -> None:
    document = json.dumps({"schemaVersion": 1, "traceEvents": SMALL, "traceName": "t"}, indent=indent).encode()
    ends = list(event_ends(document.decode()))
    assert len(ends) == len(SMALL)
    for cut in range(len(document) + 1):
        scanner = scanned(document[:cut])
        assert scanner.counts()["events"] == sum(end <= cut for end in ends), cut
        assert scanner.counts()["closed"] == (cut == len(document))


def event_ends(document: str) -> Iterator[int]:
    """Where each event's last brace ends, by stdlib json."""
    at = document.index("[", document.index("traceEvents")) + 1
    decoder = json.JSONDecoder()
    while True:
        at += len(document[at:]) - len(document[at:].lstrip(" \n,"))
        if document[at] == "]":
            return
        _, at = decoder.raw_decode(document, at)
        yield at


@given(st.data())
@settings(max_examples=400)
def test_a_broken_event_costs_no_other(data: st.DataObject) -> None:
    before = [{"ph": "X", "cat": "c", "name": f"before{i}", "ts": i, "args": {"k": i}} for i in range(3)]
    after = [{"ph": "X", "cat": "c", "name": f"after{i}", "ts": i, "args": {"k": str(i)}} for i in range(3)]
    event = json.dumps(data.draw(st.sampled_from(SMALL[:3])), ensure_ascii=False)
    place = data.draw(st.integers(1, len(event) - 2))
    if data.draw(st.booleans()):
        broken = event[:place] + event[place + 1 :]
    else:
        broken = event[:place] + data.draw(st.sampled_from(list('"{}[]:,\\x\n\x00\x01'))) + event[place:]
    parts = [*map(json.dumps, before), broken, *map(json.dumps, after)]
    document = f'{{"traceEvents": [\n{",".join(parts)}\n]}}'
    found = [
        entry["name"] for entry in events_of(scanned(document.encode(), *data.draw(st.lists(st.integers(0, 999)))))
    ]
    for entry in (*before, *after):
        assert entry["name"] in found


def test_an_unclosed_event_swallows_none_of_those_after_it() -> None:
    lost = '{"ph": "X", "name": "lost", "args": {"a": {"b": [1, 2'
    document = (
        '{"traceEvents": [{"ph": "X", "name": "a"}, ' + lost + ', {"ph": "X", "name": "b"}, {"ph": "X", "name": "c"}]}'
    )
    scanner = scanned(document.encode())
    assert [event["name"] for event in events_of(scanner)] == ["a", "b", "c"]
    assert scanner.counts()["broken"] == 1
    assert scanner.counts()["broken_bytes"] > 0


def test_an_unclosed_event_where_the_phase_is_not_first() -> None:
    listed = ",".join(f'{{"name":"n{i}","ph":"X"}}' for i in range(50))
    document = f'[{{"name":"a","ph":"X"}},{{"name":"lost","ph":"X","args":{{"k":1}},{listed}]'
    found = [event["name"] for event in events_of(scanned(document.encode()))]
    assert found[0] == "a"
    assert found[-49:] == [f"n{i}" for i in range(1, 50)]


def test_what_is_no_event_is_counted() -> None:
    scanner = scanned(b'{"traceEvents":[null,1,"x",[1],{},{"name":"n"},{"ph":""},{"ph":"X"},{"ph":null}]}')
    counts = scanner.counts()
    assert (counts["not_objects"], counts["without_phase"], counts["events"]) == (4, 4, 1)


@pytest.mark.parametrize(
    "text", [b"", b" ", b"\xef\xbb\xbf", b"{", b"[", b'{"a', b'{"a":', b'{"a":1}', b"x", b"\x00", b"]"]
)
def test_documents_without_events(text: bytes) -> None:
    for scanner in (scanned(text), bytewise(text)):
        assert scanner.counts()["events"] == 0
        assert scanner.take_tables() == []


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_any_bytes_end_in_counts(noise: bytes, cuts: list[int]) -> None:
    for document in (noise, b'{"traceEvents":[' + noise, b'[{"ph":"X"},' + noise + b',{"ph":"X"}]'):
        scanner = scanned(document, *cuts)
        assert scanner.counts()["bytes"] == len(document)
        events_of(scanner)


# --- metadata -----------------------------------------------------------------------------------------


def test_only_the_wanted_metadata_is_kept() -> None:
    document = (
        b'{"secret": {"TOKEN": "s3cr3t"}, "deviceProperties": [{"id": 0}], "traceEvents": [], "with_stack": 1, "x": 2}'
    )
    scanner = scanned(document, keep=("deviceProperties", "with_stack"))
    assert scanner.kept() == [("deviceProperties", b'[{"id": 0}]'), ("with_stack", b"1")]


# --- misuse -------------------------------------------------------------------------------------------


def test_misuse_is_an_exception() -> None:
    scanner = Scanner((), 10, 10)
    with pytest.raises(TypeError):
        scanner.feed("text")  # type: ignore[arg-type]  # that is the point
    with pytest.raises(OSError, match="Bad file descriptor"):
        scanner.read(2**31 - 1, 10)
    with pytest.raises(TypeError):
        scanner.read(0, -1)
    with pytest.raises(IndexError):
        scanner.texts(np.array([0], np.int32))
    with pytest.raises(IndexError):
        scanner.texts(np.array([-1], np.int32))
    with pytest.raises(TypeError):
        Scanner(("a",), -1, 10)


def test_finishing_and_feeding_again_does_no_harm() -> None:
    scanner = scanned(b'{"traceEvents":[{"ph":"X","args":{"a":1}},{"ph":"X","args":{"a":1')
    for _ in range(2):
        scanner.take_tables()
        scanner.finish()
        scanner.feed(b'1,"a":2}},{"ph":"X","args":{"a":300,"a":70000}}]}')
    assert math.isfinite(scanner.counts()["events"])


# --- real traces --------------------------------------------------------------------------------------


@pytest.mark.real_traces
@pytest.mark.parametrize(
    "name", ["toy-train-mi250.json.gz", "event-sync-multi-stream-a100.json.gz", "bert-small-h100.json.gz"]
)
def test_real_traces_value_by_value(real_traces: RealTraces, name: str) -> None:
    document = gzip.decompress(real_traces.path(name).read_bytes()).decode()
    check(scanned(document.encode(), *range(0, len(document), 4099)), document)
