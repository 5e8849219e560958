"""What a caching allocator reserves for a predicted step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from whystall.model.prediction.events import Event, Place, Record
from whystall.model.prediction.reserving import reserved_bytes

HERE = Place("forward", "all", "")
MIB = 1 << 20


def record(*events: tuple[int, int]) -> Record:
    return Record(tuple(Event(number, size, HERE) for number, size in events))


def test_segments_are_reserved_by_torchs_rules() -> None:
    """2 MiB for what is small, 20 MiB for what is up to 10 MiB, else its own size in multiples of 2 MiB."""
    assert reserved_bytes(record((1, 512))) == 2 * MIB
    assert reserved_bytes(record((1, 3 * MIB), (2, 5 * MIB))) == 20 * MIB
    assert reserved_bytes(record((1, 31 * MIB))) == 32 * MIB


def test_what_is_given_back_serves_again_and_stays_reserved() -> None:
    assert reserved_bytes(record((1, 32 * MIB), (1, -32 * MIB), (2, 32 * MIB))) == 32 * MIB
    assert reserved_bytes(record((1, 32 * MIB), (1, -32 * MIB), (2, 64 * MIB))) == 96 * MIB  # it does not fit in there


def test_a_storage_that_is_resized_gives_back_its_parts() -> None:
    resized = record((1, 32 * MIB), (1, -32 * MIB), (1, 64 * MIB), (1, -64 * MIB), (2, 64 * MIB))
    assert reserved_bytes(resized) == 96 * MIB


@given(st.lists(st.integers(1, 64 * MIB), min_size=1, max_size=40))
def test_no_less_is_reserved_than_is_held(sizes: list[int]) -> None:
    held = [(number, size) for number, size in enumerate(sizes)]
    given_back = [(number, -size) for number, size in held]
    reserved = reserved_bytes(record(*held, *given_back, *((number + len(sizes), size) for number, size in held)))
    assert reserved >= sum(sizes)
    assert reserved >= reserved_bytes(record(*held)) >= sum(sizes)
