"""The wire decoder beside an encoder of another author, and what it makes of bytes that are no message."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.trace.readers.wire import Value, field, message, parsed

from whystall.trace.readers.protobuf import (
    BYTES,
    VARINT,
    Field,
    WireError,
    columns,
    double,
    fields,
    signed,
    text,
    varint,
)

VALUES = st.one_of(st.integers(0, (1 << 64) - 1), st.floats(allow_nan=False), st.binary(max_size=300))


def content(data: bytes, one: Field) -> Value:
    if one.wire == VARINT:
        return one.value
    return data[one.value : one.end] if one.wire == BYTES else double(data, one)


@given(st.lists(st.tuples(st.integers(1, (1 << 29) - 1), VALUES), max_size=20))
def test_what_was_written_is_read(parts: list[tuple[int, Value]]) -> None:
    data = message(*parts)
    assert [(one.number, content(data, one)) for one in fields(data, 0, len(data))] == parts


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_numbers_below_zero_are_read(number: int) -> None:
    data = field(3, number)
    assert [signed(one.value) for one in fields(data, 0, len(data))] == [number]


@given(st.binary(max_size=200))
def test_bytes_are_fields_within_them_or_no_message(data: bytes) -> None:
    found: list[Field] = []
    try:
        found.extend(fields(data, 0, len(data)))
    except WireError:
        pass
    else:
        whole = list(parsed(data))
        assert [one.number for one in found] == [number for number, _ in whole]
    ends = [one.end for one in found]
    assert ends == sorted(ends)
    assert all(one.end <= len(data) for one in found)
    assert all(one.value <= one.end for one in found if one.wire != VARINT)


MESSAGES = st.one_of(
    st.binary(max_size=40),
    st.lists(st.tuples(st.integers(1, 40), VALUES), max_size=6).map(lambda parts: message(*parts)),
    st.lists(st.tuples(st.integers(1, 40), VALUES), max_size=6).map(lambda parts: message(*parts)[:-2]),
)


@given(st.lists(MESSAGES, max_size=8), st.binary(max_size=5))
def test_many_messages_at_once_are_what_each_is_alone(messages: list[bytes], before: bytes) -> None:
    data = b"".join([before, *messages])
    ends = list(itertools.accumulate(map(len, messages), initial=len(before)))
    found = columns(np.frombuffer(data, np.uint8), np.array(ends[:-1], np.int64), np.array(ends[1:], np.int64))
    for place, (begin, end) in enumerate(itertools.pairwise(ends)):
        mine = found.message == place
        ours = list(
            zip(*(part[mine].tolist() for part in (found.number, found.wire, found.value, found.end)), strict=True)
        )
        alone: list[Field] = []
        broken = False
        try:
            alone.extend(fields(data, begin, end))
        except WireError as error:
            broken = True
            if "are missing" in str(error) and alone and len(alone) > len(ours):
                assert alone.pop().end == end  # as far as it goes
        assert ours == [(*one[:2], signed(one.value), one.end) for one in alone]
        assert found.broken[place] == broken


def test_only_the_part_that_is_asked_for_is_read() -> None:
    data = b"\xff" + field(1, 5) + b"\xff"
    assert [one.value for one in fields(data, 1, len(data) - 1)] == [5]


def test_a_field_that_is_cut_is_given_as_far_as_it_goes() -> None:
    data = field(1, 7) + field(2, "whole text")[:-3]
    walked = fields(data, 0, len(data))
    assert next(walked).value == 7
    assert text(data, next(walked), 100) == "whole t"
    with pytest.raises(WireError, match="3 bytes of a field are missing"):
        next(walked)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x0b", "of the kind 3"),
        (b"\x0f", "of the kind 7"),
        (b"\x00\x01", "the number 0"),
        (b"\x80" * 40, "a number has no end"),
        (b"\x08", "a number has no end"),
        (b"\x09\x01\x02", "6 bytes of a field are missing"),
    ],
)
def test_what_is_no_field_is_said(data: bytes, why: str) -> None:
    with pytest.raises(WireError, match=why):
        list(fields(data, 0, len(data)))


def test_a_number_takes_64_bits_and_no_more() -> None:
    assert varint(b"\xff" * 9 + b"\x7f", 0, 10) == ((1 << 64) - 1, 10)
    with pytest.raises(WireError):
        varint(b"\xff" * 10 + b"\x01", 0, 11)


def test_long_texts_are_cut_and_bad_ones_are_shown() -> None:
    data = field(1, b"a\xff" + b"b" * 100)
    (one,) = fields(data, 0, len(data))
    assert text(data, one, 4) == "a\N{REPLACEMENT CHARACTER}bb"


def test_a_message_of_absurdly_many_fields_is_broken_and_holds_up_no_other() -> None:
    many, one = field(1, 5) * 5000, field(2, 7)
    data = np.frombuffer(many + one, np.uint8)
    found = columns(data, np.array([0, len(many)]), np.array([len(many), len(data)]), most=100)
    assert found.broken.tolist() == [True, False]
    assert np.bincount(found.message).tolist() == [100, 1]
