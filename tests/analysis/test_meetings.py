"""Which collectives of several ranks are one: built with known counterparts, and found without them."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from whystall.analysis.communication import Collectives
from whystall.analysis.meetings import Attendance, meetings
from whystall.analysis.rank_clocks import RankClock, rank_clocks
from whystall.analysis.rank_meetings import job_communication
from whystall.analysis.waiting import waiting

_STEP = 40_000_000
_PLAN = (("allreduce", "Float", 4096), ("allreduce", "Float", 4096), ("_allgather_base", "BFloat16", 1 << 20))


def _attendance(
    rank: int,
    truth: list[int],
    end: NDArray[np.int64],
    *,
    numbered: bool = False,
    lasts: NDArray[np.int64] | int = 1_000_000,
    plan: tuple[tuple[str, str, int], ...] = _PLAN,
    group: str = "0",
    ranks: str | None = "[0, 1, 2]",
    size: int = 3,
) -> Attendance:
    """What a rank saw of the collectives numbered ``truth`` (in the order of the plan, step by step)."""
    rows = [plan[number % len(plan)] for number in truth]
    records = pl.DataFrame(
        {
            "collective": [kind for kind, _, _ in rows],
            "dtype": [dtype for _, dtype, _ in rows],
            "bytes": [size for _, _, size in rows],
            "group": [group] * len(rows),
            "group_ranks": [ranks] * len(rows),
            "group_size": [size] * len(rows),
            "sequence_number": truth if numbered else [None] * len(rows),
        },
        schema_overrides={"sequence_number": pl.Int64, "bytes": pl.Int64, "group_size": pl.Int64},
    )
    return Attendance(rank, records, end - lasts, end)


def _ends(truth: list[int], seed: int, scatter_ns: int = 3_000_000) -> NDArray[np.int64]:
    """When collectives end, on the true clock: steps differ in length.

    Those of a step lie farther apart than clocks drift meanwhile: of two within 13 us nobody could tell which is which.
    """
    drawn = np.random.default_rng(seed)
    steps = np.cumsum(drawn.normal(_STEP, scatter_ns, 200)).astype(np.int64)
    within = (np.arange(3) + drawn.uniform(0.1, 0.9, 3)) / 3
    return np.array([steps[number // 3] + int(within[number % 3] * _STEP / 2) for number in truth])


def _pairs(truths: list[list[int]], numbers: list[NDArray[np.int64]]) -> tuple[int, int, int]:
    """Pairs of collectives on two ranks that are rightly joined, wrongly joined, and not joined."""
    right = wrong = missed = 0
    for one in range(len(truths)):
        for other in range(one + 1, len(truths)):
            same_number = numbers[one][:, None] == numbers[other][None, :]
            same = np.array(truths[one])[:, None] == np.array(truths[other])[None, :]
            right += int((same & same_number).sum())
            wrong += int((~same & same_number).sum())
            missed += int((same & ~same_number).sum())
    return right, wrong, missed


def test_ranks_that_saw_the_same_are_matched_in_order() -> None:
    """Three ranks, three collectives a step, no sequence numbers, clocks apart by seconds."""
    truth = list(range(30))
    end = _ends(truth, 1)
    ranks = [_attendance(rank, truth, end + rank * 3_000_000_000) for rank in range(3)]
    assert _pairs([truth] * 3, meetings(ranks)) == (90, 0, 0)


def test_sequence_numbers_go_before_order_and_sizes() -> None:
    """One rank's recording begins two steps later, and each rank gives another size to the same all_to_all."""
    early, late = list(range(30)), list(range(6, 30))
    own = (("all_to_allv", "Float", 100),)
    other = (("all_to_allv", "Float", 900),)
    ranks = [
        _attendance(0, early, _ends(early, 2), numbered=True, plan=own),
        _attendance(1, late, _ends(late, 2), numbered=True, plan=other),
    ]
    assert _pairs([early, late], meetings(ranks)) == (24, 0, 0)


@settings(max_examples=60)
@given(
    st.integers(0, 10_000),
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(-3_000_000_000, 3_000_000_000),
    st.integers(0, 40),
)
def test_recordings_that_begin_and_end_elsewhere_are_matched_by_time(
    seed: int, later: int, shorter: int, apart_ns: int, ppm: int
) -> None:
    """Without sequence numbers, whatever the clocks are apart: steps differ in length, which no other shift fits."""
    early = list(range(60))
    late = list(range(3 * later, 60 - 3 * shorter))
    end = _ends(early, seed)
    own = end[late] + apart_ns + np.rint(end[late] * ppm * 1e-6).astype(np.int64)
    ranks = [_attendance(0, early, end), _attendance(1, late, own)]
    right, wrong, missed = _pairs([early, late], meetings(ranks))
    assert (wrong, missed) == (0, 0), (right, wrong, missed)


def test_windows_of_one_length_that_begin_elsewhere_are_not_matched_in_order() -> None:
    """Both hold 30 collectives, one from a step later on."""
    first, second = list(range(30)), list(range(3, 33))
    everything = _ends(list(range(33)), 5)
    ranks = [_attendance(0, first, everything[first]), _attendance(1, second, everything[second] + 7_000_000)]
    assert _pairs([first, second], meetings(ranks)) == (27, 0, 0)


@pytest.mark.parametrize("later", [-3, 3])
def test_a_few_steps_of_one_machine_that_begin_elsewhere_are_matched_by_time(later: int) -> None:
    """Three steps of three collectives on each rank, the other's a step earlier or later: two of them are shared."""
    first, second = list(range(3, 12)), list(range(3 + later, 12 + later))
    everything = _ends(list(range(15)), 5)
    ranks = [_attendance(0, first, everything[first]), _attendance(1, second, everything[second] + 100_000)]
    assert _pairs([first, second], meetings(ranks)) == (6, 0, 0)


def test_a_few_steps_of_hosts_whose_clocks_are_apart_are_matched_in_order() -> None:
    """By half a step: taken as of one clock none of them overlaps any other."""
    truth = list(range(9))
    end = _ends(truth, 5)
    ranks = [_attendance(0, truth, end), _attendance(1, truth, end + _STEP // 2)]
    assert _pairs([truth, truth], meetings(ranks)) == (9, 0, 0)


@pytest.mark.parametrize("apart", [0.8, 1.3, 1.8])
def test_long_collectives_of_hosts_whose_clocks_are_apart_are_matched_in_order(apart: float) -> None:
    """One a step, for two fifths of it: a step later each overlaps another, and does not end with it."""
    truth = list(range(6))
    end = np.array(truth, np.int64) * _STEP + _STEP
    told: dict[str, Any] = {"lasts": _STEP * 2 // 5, "plan": _PLAN[:1]}
    ranks = [_attendance(0, truth, end, **told), _attendance(1, truth, end + int(apart * _STEP), **told)]
    assert _pairs([truth, truth], meetings(ranks)) == (6, 0, 0)


def test_what_was_asked_for_before_the_recording_is_matched_by_the_others_clock() -> None:
    """Both begin with a step of which nothing is known: the second rank's is the first one's first known step."""
    everything = _ends(list(range(36)), 5)
    nameless = {"plan": (("all_reduce", "", -1),), "group": "", "ranks": None, "size": 0}
    ranks = []
    for rank, begins in ((0, 0), (1, 3)):
        before, known = list(range(begins, begins + 3)), list(range(begins + 3, begins + 33))
        lost = _attendance(rank, before, everything[before], **nameless)  # type: ignore[arg-type]
        told = _attendance(rank, known, everything[known])
        records = pl.concat([lost.records, told.records], how="vertical_relaxed")
        start, end = (np.concatenate([getattr(one, name) for one in (lost, told)]) for name in ("start", "end"))
        ranks.append(Attendance(rank, records, start, end))
    first, second = meetings(ranks)
    assert not set(first[:3]) & set(second[:3])
    assert np.array_equal(first[6:33], second[3:30])


@pytest.mark.parametrize("steps", [1, 3, 40])
def test_ends_that_scatter_over_steps_of_one_length_are_taken_in_order(steps: int) -> None:
    """As of gloo on a busy machine: steps are alike to 0.1 ms, ends of one collective apart by more."""
    truth = list(range(3 * steps))
    drawn = np.random.default_rng(3)
    end = np.array([number // 3 * _STEP + number % 3 * 9_000_000 for number in truth])
    end = end + drawn.normal(0, 100_000, len(end)).astype(np.int64)
    late = end + drawn.normal(0, 400_000, len(end)).astype(np.int64)
    ranks = [_attendance(0, truth, end), _attendance(1, truth, late)]
    numbers = meetings(ranks)
    assert _pairs([truth, truth], numbers) == (3 * steps, 0, 0)
    assert abs(rank_clocks(ranks, numbers)[1].offset_ns) < 400_000


def test_what_one_rank_lost_is_left_alone() -> None:
    """Events lost in the middle: the others keep their counterparts."""
    whole = list(range(60))
    holed = [number for number in whole if number not in (20, 21, 33)]
    end = _ends(whole, 7)
    ranks = [_attendance(0, whole, end), _attendance(1, holed, end[holed] + 123_456)]
    assert _pairs([whole, holed], meetings(ranks)) == (57, 0, 0)


def test_groups_of_one_name_and_other_ranks_are_not_one() -> None:
    """Two tensor-parallel groups that each rank calls by the same name."""
    truth = list(range(12))
    end = _ends(truth, 3)
    ranks = [
        _attendance(0, truth, end, group="2", ranks="[0, 1]"),
        _attendance(1, truth, end, group="2", ranks="[0, 1]"),
        _attendance(2, truth, end, group="2", ranks="[2, 3]"),
        _attendance(3, truth, end, group="2", ranks="[2, 3]"),
    ]
    numbers = meetings(ranks)
    assert np.array_equal(numbers[0], numbers[1])
    assert np.array_equal(numbers[2], numbers[3])
    assert not set(numbers[0]) & set(numbers[2])


def test_a_message_is_one_thing_on_both_sides() -> None:
    """A send on rank 0 is the receive on rank 1, whatever each calls it."""
    truth = list(range(6))
    end = _ends(truth, 4)
    sends = _attendance(0, truth, end, plan=(("send", "Float", 64),), ranks="[0, 1]")
    gets = _attendance(1, truth, end, plan=(("recv", "Float", 64),), ranks="[0, 1]")
    assert _pairs([truth, truth], meetings([sends, gets])) == (6, 0, 0)


def test_a_messages_group_may_have_another_name_on_each_side() -> None:
    truth = list(range(6))
    end = _ends(truth, 4)
    sends = _attendance(0, truth, end, plan=(("send", "Float", 64),), ranks="[0, 1]", group="7")
    gets = _attendance(1, truth, end, plan=(("recv", "Float", 64),), ranks="[0, 1]", group="8")
    assert _pairs([truth, truth], meetings([sends, gets])) == (6, 0, 0)


def test_two_groups_of_a_pair_of_ranks_are_told_apart_by_names_that_both_know() -> None:
    """The sender uses one group and then the other, the receiver asks for the second's message first."""
    truth = list(range(12))
    end = _ends(truth, 4)
    both = (("send", "Float", 64),) * 2, (("recv", "Float", 64),) * 2
    sends, gets = (_attendance(rank, truth, end, plan=plan, ranks="[0, 1]") for rank, plan in enumerate(both))
    names = [["a", "b"] * 6, ["b", "a"] * 6]
    sides = [
        dataclasses.replace(one, records=one.records.with_columns(group=pl.Series(own)))
        for one, own in zip((sends, gets), names, strict=True)
    ]
    first, second = meetings(sides)
    assert first.tolist() == [second[number ^ 1] for number in range(12)]


def test_nothing_recorded_is_no_error() -> None:
    """Ranks without collectives, beside one with some."""
    truth = list(range(3))
    none = _attendance(1, [], np.zeros(0, np.int64))
    found = meetings([_attendance(0, truth, _ends(truth, 1)), none])
    assert [len(one) for one in found] == [3, 0]
    assert [len(one) for one in meetings([none, none])] == [0, 0]
    assert rank_clocks([none], [np.zeros(0, np.int64)]) == {1: RankClock()}


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from([2, 8, 64]))
def test_offsets_and_drifts_of_clocks_are_recovered_within_ten_microseconds(seed: int, count: int) -> None:
    """Ranks in groups of up to eight and one group of all; ends seen with some microseconds of scatter."""
    drawn = np.random.default_rng(seed)
    truth = list(range(120))
    end = _ends(truth, seed)
    offset = drawn.integers(-5_000_000_000, 5_000_000_000, count)
    drift = drawn.uniform(-50e-6, 50e-6, count)
    offset[0], drift[0] = 0, 0.0

    def on_clock_of(rank: int, true: NDArray[np.int64]) -> NDArray[np.int64]:
        moved: NDArray[np.int64] = true + offset[rank] + np.rint(drift[rank] * (true - end[0])).astype(np.int64)
        return moved

    ranks = []
    for rank in range(count):
        seen = end + drawn.normal(0, 2_000, len(end)).astype(np.int64)
        ranks.append(_attendance(rank, truth, on_clock_of(rank, seen), numbered=True))
    clocks = rank_clocks(ranks, meetings(ranks))
    for rank, one in enumerate(ranks):
        assert int(np.abs(clocks[rank].shared(on_clock_of(rank, end)) - end).max()) < 10_000
        assert set(clocks[rank].own(clocks[rank].shared(one.end)) - one.end) <= {0, 1}


def test_what_is_within_the_uncertainty_is_no_offset() -> None:
    """Two processes of one machine: their ends scatter, their clock is one."""
    drawn = np.random.default_rng(12)
    truth = list(range(120))
    end = _ends(truth, 12)
    ranks = [
        _attendance(rank, truth, end + drawn.normal(0, 300_000, len(end)).astype(np.int64), numbered=True)
        for rank in range(2)
    ]
    clock = rank_clocks(ranks, meetings(ranks))[1]
    assert (clock.offset_ns, clock.drift) == (0, 0.0)
    assert clock.uncertainty_ns == pytest.approx(300_000 * 2**0.5 * 1.2533 / 120**0.5, rel=0.3)


def test_hosts_whose_ends_fit_one_clock_have_one() -> None:
    """gloo over a slow link: one rank's last packet is through 16 ms later; and an offset that no one clock allows."""
    truth = list(range(30))
    end = _ends(truth, 13)
    late = replace(_attendance(1, truth, end + 16_000_000, lasts=40_000_000), on_host=True)
    ranks = [replace(_attendance(0, truth, end, lasts=40_000_000), on_host=True), late]
    assert rank_clocks(ranks, meetings(ranks))[1].offset_ns == 0
    far = replace(late, start=late.start + 1_000_000_000, end=late.end + 1_000_000_000)
    ranks = [ranks[0], far]
    assert rank_clocks(ranks, meetings(ranks))[1].offset_ns == -1_016_000_000


def test_clocks_that_do_not_drift_are_not_said_to() -> None:
    """Scatter alone is no drift; a jump that no quartz makes is none either."""
    drawn = np.random.default_rng(11)
    truth = list(range(120))
    end = _ends(truth, 11)
    scattered = end + drawn.normal(0, 20_000, len(end)).astype(np.int64)
    ranks = [_attendance(0, truth, end, numbered=True), _attendance(1, truth, scattered, numbered=True)]
    assert rank_clocks(ranks, meetings(ranks))[1].drift == 0.0
    jumped = end + np.where(np.arange(len(end)) < 60, 0, 500_000_000)
    ranks = [_attendance(0, truth, end, numbered=True), _attendance(1, truth, jumped, numbered=True)]
    assert rank_clocks(ranks, meetings(ranks))[1].drift == 0.0


def test_clocks_are_set_through_ranks_that_meet_both() -> None:
    """Ranks 0 and 2 never meet; rank 1 meets both."""
    truth = list(range(30))
    end = _ends(truth, 9)
    far, near = list(range(30)), list(range(30))
    zero = _attendance(0, far, end, group="a", ranks="[0, 1]")
    two = _attendance(2, near, end + 5_000_000 + 900_000_000, group="b", ranks="[1, 2]")
    first = _attendance(1, far, end + 40_000_000, group="a", ranks="[0, 1]")
    second = _attendance(1, near, end + 45_000_000, group="b", ranks="[1, 2]")
    one = Attendance(
        1,
        pl.concat([first.records, second.records]),
        np.concatenate([first.start, second.start]),
        np.concatenate([first.end, second.end]),
    )
    clocks = rank_clocks([zero, one, two], meetings([zero, one, two]))
    assert (clocks[1].offset_ns, clocks[2].offset_ns) == (-40_000_000, -900_000_000)


def test_waiting_and_transfer_by_hand() -> None:
    """Rank 1 comes 300 us late to a collective of 100 us, on a clock that is 5 s ahead."""
    end = np.arange(1, 11, dtype=np.int64) * 10_000_000
    truth = list(range(10))
    early = _attendance(0, truth, end, lasts=400_000, numbered=True)
    late = _attendance(1, truth, end + 5_000_000_000, lasts=100_000, numbered=True)
    ranks = [early, late, _attendance(2, truth, end, lasts=150_000, numbered=True)]
    numbers = meetings(ranks)
    found = waiting(ranks, numbers, rank_clocks(ranks, numbers))
    assert found[0].row(0) == (300_000, 100_000, 0, False)
    assert found[1].row(3) == (0, 100_000, 50_000, True)
    assert found[2]["wait_ns"].unique().to_list() == [50_000]


def _with_times(one: Attendance) -> pl.DataFrame:
    """The records of a rank as its collectives are kept: with their times, and that nothing hid them."""
    more = {"in_elements": None, "out_elements": None, "device": 0, "start": one.start, "end": one.end, "overlap": 0}
    return one.records.with_columns(
        pl.lit(value).alias(name) if value is None or isinstance(value, int) else pl.Series(name, value)
        for name, value in more.items()
    )


def test_latency_and_bandwidth_of_messages_of_several_sizes() -> None:
    """Twenty microseconds and 25 GB/s on the bus of three ranks; one rank comes late each time."""
    sizes = [1 << 16, 1 << 20, 1 << 24, 1 << 27]
    plan = tuple(("allreduce", "Float", size) for size in sizes)
    truth = list(range(40))
    transfer = np.array([20_000 + round(sizes[number % 4] * 4 / 3 / 25e9 * 1e9) for number in truth])
    end = np.cumsum(np.full(len(truth), 50_000_000, np.int64))
    ranks = []
    for rank in range(3):
        late = transfer + (0 if rank == 1 else 300_000)
        one = _attendance(rank, truth, end, plan=plan, numbered=True, lasts=late)
        ranks.append(Collectives(rank, _with_times(one)))
    rows, waits = job_communication(ranks, [{0: 50e9}] * 3)
    for row in rows:
        assert row.latency_ns == pytest.approx(20_000, rel=0.01)
        assert row.busbw_beyond_latency == pytest.approx(25e9, rel=0.01)
        assert row.wait_ns == (0 if row.rank == 1 else 40 * 300_000)
        total = sum(sizes) * 10
        assert row.bytes == total
        assert row.busbw == pytest.approx(total * 4 / 3 / (transfer.sum() / 1e9))
        assert row.share_of_peak == pytest.approx((row.busbw or 0) / 50e9)
        assert row.wirebw == pytest.approx(row.busbw)
        # 64 KiB take 3.5 us and 1 MiB 56 us beyond the latency
        assert (row.small_share, row.link_note) == (0.25, None)
    assert [(one.rank, one.last, one.alone_ns) for one in waits] == [(0, 0, 0), (1, 40, 40 * 300_000), (2, 0, 0)]


@pytest.mark.parametrize(
    ("algorithm_gb_per_s", "bus", "wire", "share", "note"),
    [
        (200, 350.0, 350.0, 350 / 450, None),
        # the reference's case of eight H100: more than a ring's links carry, so the switch reduces
        (275, 481.25, 309.375, 0.6875, "the switch reduces"),
        (500, 875.0, 562.5, None, "more than the link can carry"),
    ],
)
def test_what_crosses_the_link_of_a_reduction_in_the_switch(
    algorithm_gb_per_s: float, bus: float, wire: float, share: float | None, note: str | None
) -> None:
    size, ranks = 1 << 30, range(8)
    lasts = round(size / algorithm_gb_per_s)  # a GB/s is a byte per ns
    end = np.arange(1, 11, dtype=np.int64) * 100_000_000
    found = []
    for rank in ranks:
        plan = (("allreduce", "Float", size),)
        one = _attendance(
            rank, list(range(10)), end, plan=plan, numbered=True, lasts=lasts, ranks=str(list(ranks)), size=8
        )
        found.append(Collectives(rank, _with_times(one)))
    rows, _ = job_communication(found, [{0: 450e9}] * 8)
    for row in rows:
        assert row.busbw == pytest.approx(bus * 1e9, rel=1e-6)
        assert row.wirebw == pytest.approx(wire * 1e9, rel=1e-6)
        assert row.share_of_peak == (None if share is None else pytest.approx(share, rel=1e-6))
        assert (row.link_note is None) if note is None else (note in (row.link_note or ""))


def test_of_a_rank_that_nobody_saw_no_waiting_is_told() -> None:
    """A group of three of which two were recorded: for whom they waited is not known."""
    truth = list(range(6))
    end = _ends(truth, 6)
    ranks = [_attendance(rank, truth, end) for rank in range(2)]
    numbers = meetings(ranks)
    found = waiting(ranks, numbers, rank_clocks(ranks, numbers))
    assert found[0]["wait_ns"].null_count() == 6
    assert not found[0]["last"].any()
