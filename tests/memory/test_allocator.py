from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.memory.naive_allocator import course

from whystall.errors import UsageError
from whystall.memory.allocator import Allocation, Completion, Free, simulate
from whystall.memory.allocator_settings import MIB, AllocatorSettings, parse_settings, recorded_settings
from whystall.memory.sizes import round_size, segment_size

KIB = 1024
# Sizes around every border that the rules know.
SIZES = st.one_of(
    st.integers(0, 4 * KIB),
    st.sampled_from(
        [
            size + more
            for size in (512, MIB, 2 * MIB, 10 * MIB, 20 * MIB, 30 * MIB, 64 * MIB)
            for more in (-1, 0, 1, 600)
        ]
    ),
    st.integers(MIB // 2, 12 * MIB),
    st.integers(10 * MIB, 120 * MIB),
)
POWERS = st.sampled_from([0, 1, 2, 4, 8])
SETTINGS = st.builds(
    AllocatorSettings,
    expandable_segments=st.booleans(),
    max_split_size_bytes=st.sampled_from([None, None, 33 * MIB, 64 * MIB]),
    large_segment_bytes=st.sampled_from([20 * MIB, 20 * MIB, 32 * MIB]),
    roundup_power2_divisions=st.one_of(
        st.just((0,) * 16), POWERS.map(lambda power: (power,) * 16), st.tuples(*[POWERS] * 16)
    ),
    garbage_collection_threshold=st.sampled_from([0.0, 0.0, 0.5, 0.8]),
    device_bytes=st.sampled_from([None, 64 * MIB, 200 * MIB, 333 * MIB]),
    limit_bytes=st.sampled_from([None, None, 100 * MIB, 250 * MIB]),
)


@st.composite
def sequences(draw: st.DrawFn) -> list[Allocation | Free | Completion]:
    """Allocations and frees in any order that a program could make them in."""
    out: list[Allocation | Free | Completion] = []
    live: list[int] = []
    pending: list[int] = []
    for key in range(draw(st.integers(1, 60))):
        move = draw(st.integers(0, 9))
        if move < 5 or not (live or pending):
            pool = draw(st.sampled_from([0, 0, 0, 0, 7]))
            out.append(Allocation(key, draw(SIZES), draw(st.sampled_from([0, 0, 0, 3])), pool))
            live.append(key)
        elif move < 9 and live:
            gone = live.pop(draw(st.integers(0, len(live) - 1)))
            waits = draw(st.integers(0, 4)) == 0
            out.append(Free(gone, pending=waits))
            if waits:
                pending.append(gone)
        elif pending:
            out.append(Completion(pending.pop(draw(st.integers(0, len(pending) - 1)))))
    return out


@settings(max_examples=150)
@given(sequences(), SETTINGS)
def test_what_is_held_is_what_the_rules_say(
    events: list[Allocation | Free | Completion], chosen: AllocatorSettings
) -> None:
    got = simulate(events, chosen)
    rows, failed_at, retries = course(events, chosen)

    columns = (got.allocated_bytes, got.active_bytes, got.reserved_bytes)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == rows
    assert got.failed_at == failed_at
    assert got.retries == retries


@settings(max_examples=50)
@given(sequences(), SETTINGS)
def test_no_more_is_handed_out_than_is_held(
    events: list[Allocation | Free | Completion], chosen: AllocatorSettings
) -> None:
    got = simulate(events, chosen)

    assert (got.allocated_bytes <= got.active_bytes).all()
    assert (got.active_bytes <= got.reserved_bytes).all()
    assert chosen.device_bytes is None or got.peak_reserved_bytes <= chosen.device_bytes


# Documented: "Memory management" and "Optimizing memory usage with PYTORCH_ALLOC_CONF" of torch's CUDA notes: with 4
# divisions, 1200 lies between 1024 and 2048, whose quarters are 1024, 1280, 1536 and 1792, and becomes 1280.
@pytest.mark.parametrize(
    ("size", "conf", "rounded"),
    [
        (1, "", 512),
        (512, "", 512),
        (513, "", 1024),
        (1200 * MIB, "", 1200 * MIB),
        (1200 * MIB, "roundup_power2_divisions:4", 1280 * MIB),
        (1024 * MIB, "roundup_power2_divisions:4", 1024 * MIB),
        (300 * MIB, "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", 300 * MIB),
        (700 * MIB, "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", 768 * MIB),
        (1100 * MIB, "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", 1280 * MIB),
        (2100 * MIB, "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", 2304 * MIB),
    ],
)
def test_sizes_are_rounded_as_documented(size: int, conf: str, rounded: int) -> None:
    assert round_size(size, parse_settings(conf)) == rounded


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
    ],
)
def test_segments_have_the_sizes_of_their_pools(size: int, segment: int) -> None:
    assert segment_size(size) == segment


def test_growing_batches_fragment_segments_and_expandable_ones_do_not() -> None:
    # Each step's tensor is larger than the one before, so that no free segment serves it.
    events: list[Allocation | Free | Completion]
    events = [event for step in range(8) for event in (Allocation(step, (30 + 4 * step) * MIB), Free(step))]

    plain, expandable = simulate(events), simulate(events, AllocatorSettings(expandable_segments=True))

    assert plain.peak_reserved_bytes == sum(30 + 4 * step for step in range(8)) * MIB
    assert expandable.peak_reserved_bytes == 60 * MIB  # three pages of 20 MiB hold 58


def test_free_segments_are_given_back_before_memory_runs_out() -> None:
    device = AllocatorSettings(device_bytes=100 * MIB)

    got = simulate([Allocation(1, 60 * MIB), Free(1), Allocation(2, 80 * MIB), Allocation(3, 40 * MIB)], device)

    assert got.reserved_bytes.tolist() == [60 * MIB, 60 * MIB, 80 * MIB]
    assert (got.retries, got.segments_freed, got.failed_at) == (2, 1, 3)


def test_a_block_serves_its_own_stream_alone() -> None:
    got = simulate([Allocation(1, 30 * MIB, stream=1), Free(1), Allocation(2, 30 * MIB, stream=2)])

    assert got.peak_reserved_bytes == 60 * MIB


def test_what_another_stream_uses_serves_nobody_until_it_is_done() -> None:
    asked: list[Allocation | Free | Completion]
    asked = [Allocation(1, 30 * MIB), Free(1, pending=True), Allocation(2, 30 * MIB), Free(2), Completion(1)]

    got = simulate(asked)

    assert (got.allocated_bytes // MIB).tolist() == [30, 0, 30, 0, 0]
    assert (got.active_bytes // MIB).tolist() == [30, 30, 60, 30, 0]


@pytest.mark.parametrize("events", [[Free("x")], [Allocation("x", 1), Allocation("x", 1)]])
def test_a_sequence_that_cannot_be_is_refused(events: list[Allocation | Free | Completion]) -> None:
    with pytest.raises(ValueError, match="'x' is"):
        simulate(events)


@pytest.mark.parametrize(
    "text",
    ["max_split_size_mb:20", "max_split_size_mb:x", "expandable_segments:yes", "garbage_collection_threshold:1.5",
     "roundup_power2_divisions:3", "roundup_power2_divisions:[3:1]", "nonsense", "a:[1,2"],
)  # fmt: skip
def test_settings_that_torch_refuses_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_settings(text)


def test_settings_of_a_snapshot_are_read() -> None:
    stored = {
        "expandable_segments": True,
        "max_split_size": 128 * MIB,
        "garbage_collection_threshold": 0.6,
        "roundup_power2_divisions": {"1": 0, "2": 0, "64": 4, "32768": 8},
    }

    got = recorded_settings(stored)

    assert got.expandable_segments
    assert got.max_split_size_bytes == 128 * MIB
    assert got.garbage_collection_threshold == 0.6
    assert got.divisions(100 * MIB) == 4
    assert got.divisions(MIB) == 0
    assert recorded_settings({"max_split_size": -1, "expandable_segments": 3}) == AllocatorSettings()
