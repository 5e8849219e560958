"""What the sieve lets through of a trace: the events that tell of collectives, whole, however the bytes are cut."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystall._native import Sieve

Event = dict[str, Any]
# Texts that hold what the sieve looks for, which in JSON stands behind a backslash there.
TRICKS = (
    'not "ProfilerStep#8',
    'say "kernel"',
    '{"ph": "X"}',
    '"Collective name"',
    "back\\",
    'a "name" of "args"',
    "nccl\nAllReduce",
)
WANTED = ("ncclDevKernel_AllReduce", "multimem_all_reduce_kernel")


def wanted(name: str) -> bool:
    return name in WANTED


def sifted(document: bytes, *cuts: int, longest: int = 1 << 20) -> bytes:
    sieve = Sieve(longest)
    edges = [0, *sorted(cut % (len(document) + 1) for cut in cuts), len(document)]
    return b"".join(sieve.feed(document[a:b], wanted) for a, b in pairwise(edges)) + sieve.finish()


def event(category: str, name: str, arguments: Event) -> Event:
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 7, "ts": 1.5, "dur": 2.0, "args": arguments}


def tells(one: Event) -> bool:
    plain = "\\" not in json.dumps(one["name"])
    kernel = one["cat"] == "kernel" and (wanted(one["name"]) or not plain)
    # What holds the name of a step behind a quote of its own is let through as well.
    step = any('"ProfilerStep#' in json.dumps(text) for text in (one["name"], *one["args"].values()))
    return kernel or "Collective name" in one["args"] or step


names = st.sampled_from([*WANTED, *TRICKS, "gemm", "aten::mm", "ProfilerStep#7"])
arguments = st.dictionaries(
    st.sampled_from(["Collective name", "stream", "kernel backend", "Shapes"]),
    st.one_of(st.integers(0, 9), st.sampled_from(TRICKS), st.lists(st.integers(0, 3), max_size=3)),
    max_size=3,
)
events = st.lists(
    st.builds(event, st.sampled_from(["kernel", "cpu_op", "user_annotation"]), names, arguments), min_size=1
)


@given(events, st.sampled_from([None, 1, 2]), st.lists(st.integers(0, 1 << 16), max_size=4), st.booleans())
def test_what_tells_of_a_collective_and_the_last_event_come_whole(
    found: list[Event], indent: int | None, cuts: list[int], listed: bool
) -> None:
    document = found if listed else {"schemaVersion": 1, "traceEvents": found, "traceName": '{"ph"'}
    text = json.dumps(document, indent=indent).encode()
    let = json.loads(sifted(text, *cuts))
    kept = let if listed else let.pop("traceEvents")
    assert kept == [one for one in found[:-1] if tells(one)] + found[-1:]
    assert listed or let == {"schemaVersion": 1, "traceName": '{"ph"'}


@given(events, st.lists(st.integers(0, 1 << 16), max_size=8))
def test_where_the_bytes_are_cut_changes_nothing(found: list[Event], cuts: list[int]) -> None:
    text = json.dumps({"traceEvents": found}).encode()
    assert sifted(text, *cuts) == sifted(text)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=4), st.integers(1, 40))
def test_of_bytes_of_any_kind_none_is_made_up(data: bytes, cuts: list[int], longest: int) -> None:
    let = sifted(data, *cuts, longest=longest)
    rest = iter(data)
    assert all(byte in rest for byte in let)  # a part of the bytes, in their order


def test_a_file_whose_events_do_not_begin_with_their_phase_is_let_through_whole() -> None:
    text = json.dumps({"traceEvents": [{"name": "x", "ph": "X", "cat": "cpu_op", "ts": 1}] * 50}).encode()
    assert sifted(text, 100, 1000, 2000) == text
    assert sifted(text, *range(0, len(text), 50), longest=64) == text


def test_an_event_beyond_all_bounds_is_let_through_as_it_stands() -> None:
    long = event("cpu_op", "x" * 5_000, {})
    text = json.dumps({"traceEvents": [event("cpu_op", "a", {}), long, event("kernel", WANTED[0], {})]}).encode()
    assert json.loads(sifted(text, *range(0, len(text), 100), longest=1_000))["traceEvents"][-2:] == [
        long,
        event("kernel", WANTED[0], {}),
    ]


def test_a_name_is_asked_for_once_and_what_the_answer_raises_is_raised(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [event("kernel", "gemm", {})] * 4}))
    asked: list[str] = []

    def said(name: str) -> bool:
        asked.append(name)
        return False

    def fails(name: str) -> bool:
        raise LookupError(name)

    for answer in (said, fails):
        sieve, file = Sieve(1 << 20), os.open(path, os.O_RDONLY)
        try:
            if answer is fails:
                with pytest.raises(LookupError, match="gemm"):
                    sieve.read(file, 1 << 16, answer)
            else:
                assert sieve.read(file, 1 << 16, answer) == (path.stat().st_size, b'{"traceEvents": [')
                assert sieve.read(file, 1 << 16, answer) is None
        finally:
            os.close(file)
    assert asked == ["gemm"]
    with pytest.raises(OSError, match="descriptor"):
        Sieve(1).read(file, 16, said)
