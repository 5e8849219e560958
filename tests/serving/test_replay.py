"""The replay against a scheduler of the tests' own, and against the recorded servers."""

from __future__ import annotations

import pytest
from hypothesis import given
from tests.serving.samples import NAMES, analysis
from tests.serving.server import MS, Engine
from tests.serving.test_membership import engines

from whystall.serving.predictions import Replayer
from whystall.serving.replay import Load, Pace, Server, play
from whystall.serving.step_model import StepModel

EXACT = StepModel(4 * MS, MS / 8, MS / 10, 0.0, 0.0, 0.0, 100)
"""The cost of the tests' own engine."""


def loads(engine: Engine) -> list[Load]:
    return [Load(one.sent, one.front, engine.out, engine.out, one.prompt, one.output) for one in engine.calls]


@given(engines())
def test_a_replay_is_the_schedule(engine: Engine) -> None:
    server = Server(engine.max_num_seqs, engine.budget, engine.blocks, engine.block)

    found = play(loads(engine), server, EXACT, gap_ns=engine.gap)

    assert found is not None
    assert found.preemptions == engine.preemptions
    assert found.steps == len(engine.steps)
    # The engine's own gap follows its step, and the replay counts it into the step: one gap of difference.
    for first, whole, call in zip(found.ttft_ns, found.e2e_ns, engine.calls, strict=True):
        assert abs(first - (call.token_at[0] - call.sent)) <= engine.gap + len(engine.steps)
        assert abs(whole - (call.token_at[-1] - call.sent)) <= engine.gap + len(engine.steps)


def test_a_request_that_never_fits_is_no_replay() -> None:
    assert play([Load(0, 0, 0, 0, 500, 10)], Server(None, None, 8, 32), EXACT) is None


def test_a_slow_while_of_the_machine_is_played_again() -> None:
    # For 100 ms the work of 50 ms is done, then all of it.
    pace = Pace([0, 100 * MS, 200 * MS], [50.0 * MS, 100.0 * MS])

    assert pace.end_ns(0, 10 * MS) == 20 * MS
    assert pace.end_ns(90 * MS, 15 * MS) == 110 * MS
    assert pace.end_ns(110 * MS, 15 * MS) == 125 * MS
    assert pace.end_ns(190 * MS, 15 * MS) == 210 * MS  # and round again


@pytest.mark.real_traces
@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_run_is_met_within_five_and_fifteen_percent(name: str) -> None:
    check = Replayer(analysis(name)).check

    assert check is not None
    for metric in check.metrics:
        if metric.name == "e2e":
            limit = 0.05 if metric.percentile == 50 else 0.15
            assert metric.after_ns == pytest.approx(metric.before_ns, rel=limit)


@pytest.mark.real_traces
def test_preemptions_of_a_smaller_cache_are_predicted() -> None:
    """From the run with enough blocks to the one with 20, which the server preempted 60 times."""
    replayer = Replayer(analysis("kv-enough"))

    found = replayer.predict("20 blocks", server=replayer.server.changed(kv_blocks=20))

    assert found is not None
    assert found.preemptions[0] == 0
    assert found.preemptions[1] == pytest.approx(60, rel=0.1)
    measured = Replayer(analysis("kv-preemption")).check
    assert measured is not None
    truth = next(one.before_ns for one in measured.metrics if (one.name, one.percentile) == ("e2e", 50))
    assert found.metric("e2e", 50).after_ns == pytest.approx(truth, rel=0.1)


def test_one_call_alone_takes_its_steps() -> None:
    found = play([Load(0, 2 * MS, MS, MS, 80, 3)], Server(), EXACT, gap_ns=0)

    step = 4 * MS + MS // 10
    assert found is not None
    assert found.ttft_ns == (2 * MS + step + 10 * MS + MS,)
    assert found.e2e_ns == (2 * MS + 3 * step + 10 * MS + MS,)
