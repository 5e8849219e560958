"""The replay against a scheduler of the tests' own, and against the recorded servers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.serving.samples import NAMES, analysis
from tests.serving.server import MS, Engine
from tests.serving.slow_replay import SlowReplay, play_slowly
from tests.serving.test_machine import machines
from tests.serving.test_membership import engines

from whystall.serving.machine import Machine
from whystall.serving.predictions import Replayer
from whystall.serving.replay import Load, Played, Server, play
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


@st.composite
def any_loads(draw: st.DrawFn) -> list[Load]:
    """Requests with long and short prompts and answers, some of which come together and share a beginning."""
    count = draw(st.integers(1, 14))
    times = st.integers(0, 60 * MS) | st.just(0)
    return [
        Load(
            sent_ns=(due := draw(times)) + draw(st.sampled_from((0, 0, 3 * MS))),
            front_ns=draw(st.integers(0, 2 * MS)),
            first_output_ns=draw(st.integers(0, MS)),
            output_ns=draw(st.integers(0, MS)),
            input_tokens=draw(st.integers(1, 120)),
            output_tokens=draw(st.integers(0, 60)),
            blocks=tuple(range(draw(st.integers(0, 6)))),
            due_ns=due,
        )
        for _ in range(count)
    ]


@st.composite
def servers(draw: st.DrawFn) -> Server:
    """Settings that bind often: few places, small budgets, few and small blocks, a client that waits."""
    maybe = st.none() | st.integers(1, 6)
    return Server(
        max_num_seqs=draw(maybe),
        max_num_batched_tokens=draw(st.none() | st.integers(1, 90)),
        kv_blocks=draw(st.none() | st.integers(14, 60)),
        block_tokens=draw(st.sampled_from((1, 4, 16))),
        prefix_caching=draw(st.booleans()),
        max_concurrency=draw(maybe),
    )


@st.composite
def models(draw: st.DrawFn) -> StepModel:
    """Costs of which some are nothing."""
    cost = st.sampled_from((0.0, 0.3, 850.4, 62_500.0, 4.0 * MS))
    return StepModel(draw(cost), draw(cost), draw(cost), draw(cost), draw(cost), 0.0, 100)


def same(fast: Played, slow: SlowReplay) -> bool:
    """Whether both have the same times, and steps of the same number and sizes."""
    counts = (fast.steps, fast.preemptions, fast.most_sequences, fast.most_tokens)
    return (fast.ttft_ns, fast.e2e_ns, fast.tpot_ns) == slow.times() and counts == slow.counts()


@given(any_loads(), servers(), models(), machines(), st.sampled_from((0, MS // 3)))
def test_steps_at_once_are_steps_one_by_one(
    loads: list[Load], server: Server, model: StepModel, machine: Machine, gap_ns: int
) -> None:
    fast = play(loads, server, model, gap_ns=gap_ns, machine=machine)
    slow = play_slowly(loads, server, model, gap_ns=gap_ns, machine=machine)

    assert (fast is None) == (slow is None)
    if fast is not None and slow is not None:
        assert same(fast, slow)


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

    found = replayer.predict("20 blocks", server=replace(replayer.server, kv_blocks=20))

    assert found is not None
    assert found.preemptions[0] == 0
    assert found.preemptions[1] == pytest.approx(60, rel=0.1)
    measured = Replayer(analysis("kv-preemption")).check
    assert measured is not None
    truth = next(one.before_ns for one in measured.metrics if (one.name, one.percentile) == ("e2e", 50))
    assert found.metric("e2e", 50).after_ns == pytest.approx(truth, rel=0.1)


@pytest.mark.real_traces
@pytest.mark.parametrize("name", ["kv-preemption", "mixed-budget-256", "prefix-shared"])
def test_recorded_loads_are_played_step_by_step_with_the_same_times(name: str) -> None:
    replayer = Replayer(analysis(name))
    model = replayer.model
    assert model is not None

    for machine in replayer.machines[:3]:
        fast = play(replayer.loads, replayer.server, model, machine=machine)
        slow = play_slowly(replayer.loads, replayer.server, model, machine=machine)
        assert fast is not None
        assert slow is not None
        assert same(fast, slow)


def test_a_client_with_a_limit_sends_when_another_has_ended() -> None:
    """Three requests at once for two at a time: the third is sent when the first answer is back."""
    loads = [replace(Load(0, 2 * MS, MS, MS, 80, output), due_ns=0) for output in (3, 9, 30)]

    found = play(loads, Server(max_concurrency=2), EXACT)
    alone = play(loads[:2], Server(), EXACT)

    assert found is not None
    assert alone is not None
    assert found.e2e_ns[0] == alone.e2e_ns[0]
    third = found.end_ns - found.e2e_ns[2]
    assert third == alone.e2e_ns[0]


def test_one_call_alone_takes_its_steps() -> None:
    found = play([Load(0, 2 * MS, MS, MS, 80, 3)], Server(), EXACT, gap_ns=0)

    step = 4 * MS + MS // 10
    assert found is not None
    assert found.ttft_ns == (2 * MS + step + 10 * MS + MS,)
    assert found.e2e_ns == (2 * MS + 3 * step + 10 * MS + MS,)
