"""The ledger over roles against truth written down by hand, and against asking each instant."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystall.analysis.roles import Doing, Stretches, roles_of

MS = 1_000_000


def stretches(*pairs: tuple[int, int], by: int = MS) -> Stretches:
    begin, end = (np.array([pair[side] * by for pair in pairs], np.int64) for side in (0, 1))
    return Stretches.of(begin, end)


def doing(
    role: str,
    *work: tuple[int, int],
    process: str = "",
    span: tuple[int, int] = (0, 100),
    by: int = MS,
    **more: Stretches,
) -> Doing:
    return Doing(
        role=role,
        process=process or f"{role}{work}",
        begin=span[0] * by,
        end=span[1] * by,
        work=stretches(*work, by=by),
        communication=more.get("communication", stretches()),
        steps=more.get("steps", stretches()),
    )


def test_who_waits_for_whom_is_told_to_the_nanosecond() -> None:
    """Four rollouts end at 20, 30, 40 and 60 ms; then weights are brought over for 10, and the trainer works for 20."""
    found = roles_of(
        [
            *(doing("rollout", (0, end)) for end in (20, 30, 40, 60)),
            doing("trainer", (70, 90), communication=stretches((60, 70)), steps=stretches((0, 90))),
        ]
    )
    assert found is not None
    rollout, trainer = found.roles
    assert (found.window_ns, found.several_ns, found.communication_ns, found.nobody_ns) == (
        100 * MS, 0, 10 * MS, 10 * MS
    )  # fmt: skip
    assert (rollout.role, rollout.processes, rollout.alone_ns, rollout.work_ns) == ("rollout", 4, 60 * MS, 60 * MS)
    assert rollout.mean_work_ns == (20 + 30 + 40 + 60) * MS // 4
    assert rollout.tail_ns == 30 * MS  # from 30 ms on two of four work, from 40 ms one
    assert rollout.spread_ns == (10 * 0.5 + 20 * 0.75) * MS
    assert (rollout.waits_ns, rollout.bubbles, rollout.longest_bubble_ns) == (20 * MS, 1, 20 * MS)
    assert (trainer.alone_ns, trainer.tail_ns, trainer.waits_ns, trainer.communicates_ns) == (
        20 * MS, 0, 60 * MS, 10 * MS
    )  # fmt: skip
    assert (trainer.steps, trainer.step_ns) == (1, 90 * MS)
    assert found.at_most == pytest.approx(100 / 60)


def test_roles_that_work_beside_each_other_wait_for_nobody() -> None:
    found = roles_of([doing("rollout", (0, 100)), doing("trainer", (0, 100))])
    assert found is not None
    assert found.several_ns == found.window_ns
    assert [role.alone_ns for role in found.roles] == [0, 0]
    assert found.at_most == 1.0


def test_phases_of_one_process_cannot_be_hidden_behind_each_other() -> None:
    found = roles_of([doing("rollout", (0, 60), process="a"), doing("training", (60, 100), process="a")])
    assert found is not None
    assert found.one_after_another
    assert found.at_most is None


def test_only_the_time_that_all_recorded_counts() -> None:
    found = roles_of([doing("a", (0, 90), span=(0, 100)), doing("b", (50, 150), span=(50, 150))])
    assert found is not None
    assert (found.window_ns, found.several_ns) == (50 * MS, 40 * MS)
    assert roles_of([doing("a", (0, 10), span=(0, 10)), doing("b", (20, 30), span=(20, 30))]) is None


pairs = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8)).map(lambda one: (one[0], sum(one))), max_size=5)
processes = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), pairs, pairs), min_size=1, max_size=5)


@given(processes)
def test_the_parts_are_those_that_each_instant_has(
    drawn: list[tuple[str, list[tuple[int, int]], list[tuple[int, int]]]],
) -> None:
    doings = [
        doing(role, *work, process=str(number), span=(2, 44), by=1, communication=stretches(*speaks, by=1))
        for number, (role, work, speaks) in enumerate(drawn)
    ]
    found = roles_of(doings)
    assert found is not None
    alone: dict[str, int] = dict.fromkeys({role for role, *_ in drawn}, 0)
    waits, tail = dict(alone), dict(alone)
    several = communication = nobody = 0
    for instant in range(2, 44):
        here = dict.fromkeys(alone, 0)
        speaking = False
        for role, work, speaks in drawn:
            here[role] += any(low <= instant < high for low, high in work)
            speaking |= any(low <= instant < high for low, high in speaks)
        at_work = [role for role, count in here.items() if count]
        several += len(at_work) > 1
        communication += not at_work and speaking
        nobody += not at_work and not speaking
        for role, count in here.items():
            of_role = sum(one[0] == role for one in drawn)
            alone[role] += at_work == [role]
            tail[role] += at_work == [role] and 2 * count <= of_role
            waits[role] += not count and bool(at_work)
    assert (found.several_ns, found.communication_ns, found.nobody_ns) == (several, communication, nobody)
    for one in found.roles:
        assert (one.alone_ns, one.tail_ns, one.waits_ns) == (alone[one.role], tail[one.role], waits[one.role])
    parts = sum(one.alone_ns for one in found.roles) + several + communication + nobody
    assert parts == found.window_ns


@given(pairs, pairs)
def test_both_and_without_are_what_each_instant_says(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    left, right = stretches(*one, by=1), stretches(*other, by=1)
    instants = np.arange(60)
    inside = [any(low <= at < high for low, high in one) for at in range(60)]
    also = [any(low <= at < high for low, high in other) for at in range(60)]
    assert left.both(right).at(instants).tolist() == [a and b for a, b in zip(inside, also, strict=True)]
    assert left.without(right).at(instants).tolist() == [a and not b for a, b in zip(inside, also, strict=True)]


def test_short_pauses_are_work() -> None:
    begin, end = np.array([0, 12, 40]), np.array([10, 20, 50])
    found = Stretches.of(begin, end, 5)
    assert (found.begin.tolist(), found.end.tolist()) == ([0, 40], [20, 50])
