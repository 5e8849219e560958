"""What a caching allocator reserves for a predicted step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from whystall.hardware import find
from whystall.memory.allocator_settings import DEFAULT, parse_settings
from whystall.model.prediction.events import Event, Place, Record
from whystall.model.prediction.fitting import fit
from whystall.model.prediction.request import Request
from whystall.model.prediction.reserving import holds, reserved_bytes

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


def test_other_settings_reserve_otherwise() -> None:
    grows = record((1, 32 * MIB), (1, -32 * MIB), (2, 64 * MIB))
    assert reserved_bytes(grows) == 96 * MIB
    # One segment that grows, by pages of 20 MiB.
    assert reserved_bytes(grows, parse_settings("expandable_segments:True")) == 80 * MIB


def test_what_tensors_hold_may_fit_where_segments_do_not() -> None:
    """Three segments of 20 MiB, each with 6 MiB in its middle: what is above 10 MiB then wants segments of its own."""
    made = [(number, 6 * MIB) for number in range(8)]
    given_back = [(number, -6 * MIB) for number in range(8) if number % 3 != 1]
    course = record(*made, *given_back, (8, 12 * MIB), (9, 12 * MIB))
    assert holds(course, DEFAULT, 60 * MIB + 24 * MIB)
    assert not holds(course, DEFAULT, 60 * MIB + 23 * MIB)
    assert holds(course, parse_settings("expandable_segments:True"), 60 * MIB)


def test_segments_decide_whether_a_step_fits_its_device_and_a_limit_is_of_tensors() -> None:
    device = "NVIDIA A100-SXM4-40GB"
    row = find(device)
    asked: list[int] = []

    def too_little(room: int) -> bool:
        asked.append(room)
        return False

    request = Request(target="train.py:model", device=device)
    found = fit(request, row, 30 << 30, holds=too_little)
    assert found is not None
    assert (found.fits, found.fragmented) == (False, True)
    assert asked == [(30 << 30) + found.spare_bytes]
    limited = fit(
        Request(target="train.py:model", device=device, limit_bytes=31 << 30), row, 30 << 30, holds=too_little
    )
    assert limited is not None
    assert (limited.fits, limited.fragmented) == (True, False)
