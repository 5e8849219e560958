"""Which batch is probed next, beside a device whose real memory is known; and where the knee is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystall.model.prediction.largest import largest_batch
from whystall.model.prediction.results import BatchPeak
from whystall.probe.batch.results import Attempt, BatchRun
from whystall.probe.batch.search import MOST_ATTEMPTS, knee_of, next_batch, predicted_bytes

ROOM = 10**9


def predictions(base: int, each: int) -> tuple[list[BatchPeak], int]:
    """The predictions that a search makes of a step that holds ``base`` and ``each`` for a sample."""

    def predicted(batch: int) -> BatchPeak:
        peak = base + each * batch
        return BatchPeak(batch=batch, peak_bytes=peak, spare_bytes=ROOM - peak, least_ns=None)

    tried, largest = largest_batch(predicted)
    assert largest is not None
    return list(tried), largest


def probed(base: int, each: int, real_base: int, real_each: int, *, dies: bool = False) -> list[Attempt]:
    """All attempts where a step really holds something else than was predicted."""
    predicted, batch = predictions(base, each)
    attempts: list[Attempt] = []
    following: int | None = batch
    while following is not None:
        held = real_base + real_each * following
        outcome = "fits" if held <= ROOM else "killed" if dies else "over the limit"
        attempts.append(
            Attempt(
                batch=following,
                predicted_bytes=predicted_bytes(predicted, following),
                outcome=outcome,  # type: ignore[arg-type]
                held_bytes=None if outcome == "killed" else held,
            )
        )
        following = next_batch(attempts, predicted, ROOM)
    return attempts


def test_a_prediction_that_is_right_needs_one_probe() -> None:
    assert [one.outcome for one in probed(10**8, 10**6, 10**8, 10**6)] == ["fits"]


@pytest.mark.parametrize("more", [1.05, 1.5, 3.0])
def test_a_prediction_that_is_low_is_corrected_by_what_was_measured(more: float) -> None:
    attempts = probed(10**8, 10**6, 10**8, int(10**6 * more))
    really = (ROOM - 10**8) // int(10**6 * more)

    assert attempts[0].outcome == "over the limit"
    assert 0.9 * really <= max(one.batch for one in attempts if one.fits) <= really


def test_a_prediction_that_is_high_leads_to_a_larger_batch() -> None:
    attempts = probed(10**8, 2 * 10**6, 10**8, 10**6)

    assert attempts[0].batch == 450
    assert max(one.batch for one in attempts if one.fits) > 0.9 * 900


def test_after_a_death_the_next_batch_is_smaller_and_after_two_half_is_tried() -> None:
    attempts = probed(0, 10**6, 0, 18 * 10**5, dies=True)

    assert [one.batch for one in attempts] == [1000, 900, 500]
    assert [one.outcome for one in attempts] == ["killed", "killed", "fits"]


sizes = st.integers(0, 5 * 10**8), st.integers(10**4, 10**7)


@given(*sizes, *sizes, st.booleans())
def test_there_are_at_most_three_probes_and_none_that_is_known_to_fail(
    base: int, each: int, real_base: int, real_each: int, dies: bool
) -> None:
    attempts = probed(base, each, real_base, real_each, dies=dies)

    assert len(attempts) <= MOST_ATTEMPTS == 3
    assert len({one.batch for one in attempts}) == len(attempts)
    for number, one in enumerate(attempts):
        assert all(one.batch < before.batch for before in attempts[:number] if not before.fits)
        assert all(one.batch > before.batch for before in attempts[:number] if before.fits)


def test_batches_make_up_an_effective_one() -> None:
    predicted, largest = predictions(10**8, 10**6)
    over = Attempt(batch=largest, predicted_bytes=ROOM, outcome="over the limit", held_bytes=2 * ROOM)

    assert next_batch([over], predicted, ROOM, divides=1024) == 256  # 400 by the correction


def run(batch: int, step_ms: float) -> BatchRun:
    step_ns = int(step_ms * 1e6)
    return BatchRun(batch=batch, held_bytes=1, steps=3, step_ns=step_ns, fastest_ns=step_ns, slowest_ns=step_ns)


def test_the_knee_is_the_smallest_batch_near_the_highest_throughput() -> None:
    # 10 ms whatever the batch, and 1 ms a sample: nine tenths of 64's 0.865 samples a ms are first reached by 64 alone
    # of these; with 128 and 256 (0.962) by 128 (0.928).
    assert knee_of([run(batch, 10 + batch) for batch in (8, 16, 32, 64)]) == 64
    assert knee_of([run(batch, 10 + batch) for batch in (8, 16, 32, 64, 128, 256)]) == 128
    assert knee_of([run(1, 10), run(2, 20), run(4, 41)]) == 1
    assert knee_of([run(8, 10)]) is None
