"""Membership against a scheduler of the tests' own, and against the recorded servers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.serving.samples import NAMES, analysis
from tests.serving.server import MS, Call, Engine

from whystall.serving.folder import read_run
from whystall.serving.parts import Part
from whystall.serving.run_analysis import analyze_run


@st.composite
def engines(draw: st.DrawFn) -> Engine:
    """A load on an engine whose limits bite: few places, small budgets, few blocks."""
    calls: list[Call] = []
    due = 0
    for number in range(draw(st.integers(3, 14))):
        due += draw(st.integers(0, 40)) * MS
        # No two prompts are as long as each other: nothing in the counts tells such requests apart.
        prompt = draw(st.integers(1, 20)) * 16 + number
        calls.append(Call(due, prompt, draw(st.integers(1, 30))))  # they come in the order of sending
    largest = max(-(-(one.prompt + one.output) // 32) for one in calls)
    return Engine(
        max_num_seqs=draw(st.integers(1, 8)),
        budget=draw(st.sampled_from([48, 128, 2048])),
        blocks=draw(st.sampled_from([largest + 1, largest + 4, 5000])),
    ).serve(calls)


@given(engines())
def test_each_request_is_in_its_steps(tmp_path_factory: pytest.TempPathFactory, engine: Engine) -> None:
    found = analyze_run(read_run([engine.write(tmp_path_factory.mktemp("run"))]))

    assert found.membership is not None
    assert found.membership.mismatched == 0
    for call, placed in zip(engine.calls, found.placed, strict=True):
        assert placed is not None
        emitting = {step for first, end in placed.emits for step in range(first, end)}
        assert emitting | {chunk.step for chunk in placed.chunks} == set(call.steps)
        assert {chunk.step: chunk.tokens for chunk in placed.chunks} == {
            chunk.step: call.steps[chunk.step] for chunk in placed.chunks
        }
        assert call.preemptions or sum(chunk.tokens for chunk in placed.chunks) == call.prompt
        assert len(emitting) == call.output
        assert len(placed.preempted) == call.preemptions


@given(engines())
def test_the_parts_of_each_request_add_up(tmp_path_factory: pytest.TempPathFactory, engine: Engine) -> None:
    spans = len(engine.calls) % 2 == 0
    found = analyze_run(read_run([engine.write(tmp_path_factory.mktemp("run"), spans=spans)]))

    for call, ledger in zip(engine.calls, found.ledgers, strict=True):
        assert sum(ledger.parts.values()) == ledger.total_ns
        assert abs(ledger.total_ns - (call.token_at[-1] - call.due)) < 1000  # the files' seconds have nanoseconds
        assert min(ledger.parts.values()) >= 0


@given(engines())
def test_a_wait_in_the_queue_is_found(tmp_path_factory: pytest.TempPathFactory, engine: Engine) -> None:
    found = analyze_run(read_run([engine.write(tmp_path_factory.mktemp("run"))]))

    # A request behind another one may stand in the queue or still be on its way: of their sum the log says all.
    waits = (Part.QUEUE, Part.STEP_WAIT, Part.HTTP_AND_FRONT, Part.ENGINE_GAP)
    for call, ledger, placed in zip(engine.calls, found.ledgers, found.placed, strict=True):
        assert placed is not None
        if not call.preemptions:
            gaps = (len(set(call.steps)) + 1) * engine.gap
            truth = call.queued + call.step_wait + call.front
            assert truth <= ledger.of(*waits) + 2 * MS // 100 * len(engine.steps)
            assert ledger.of(*waits) <= truth + gaps + MS


def test_a_prefix_that_was_computed_needs_no_tokens(tmp_path: Path) -> None:
    common = list(range(20))
    calls = [Call(n * 50 * MS, 512 + n, 4, ids=[*common, *range(100 * n, 100 * n + 12)]) for n in range(1, 9)]
    engine = Engine(caching=True).serve(calls)

    found = analyze_run(read_run([engine.write(tmp_path)]))

    assert found.membership is not None
    assert found.membership.mismatched == 0
    computed = [sum(chunk.tokens for chunk in placed.chunks) for placed in found.placed if placed is not None]
    assert computed == [call.prompt - call.hits for call in calls]
    assert computed[1] < calls[1].prompt - 300


def test_a_thousand_requests_in_one_step_are_placed(tmp_path: Path) -> None:
    calls = [Call(0, 20 + n % 7, 2) for n in range(1500)] + [Call(9000 * MS, 50, 2)]
    engine = Engine(max_num_seqs=4000, budget=100_000, blocks=20_000).serve(calls)

    found = analyze_run(read_run([engine.write(tmp_path)]))

    assert found.membership is not None
    assert (found.membership.mismatched, found.membership.known) == (0, 1501)


def test_requests_of_others_before_the_load_are_counted_as_such(tmp_path: Path) -> None:
    calls = [Call(n * 200 * MS, 7, 5) for n in range(3)]
    calls += [Call(1000 * MS + n * 40 * MS, 100 + n, 30, ids=list(range(50 * n, 50 * n + 10))) for n in range(40)]
    engine = Engine(caching=True, block=64).serve(calls)
    del engine.calls[:3]

    found = analyze_run(read_run([engine.write(tmp_path)]))

    assert found.membership is not None
    assert (found.membership.foreign, found.membership.known) == (3, 40)
    assert [placed.first_step for placed in found.placed if placed] == [call.first_step for call in calls[3:]]


def test_a_chat_template_is_seen_in_the_log(tmp_path: Path) -> None:
    engine = Engine().serve([Call(n * 30 * MS, 100 + n * 3, 12) for n in range(40)])
    lengths = [call.prompt - 13 for call in engine.calls]

    found = analyze_run(read_run([engine.write(tmp_path, input_lens=lengths)]))

    assert found.membership is not None
    assert (found.membership.mismatched, found.membership.known) == (0, 40)
    assert any("13 tokens more" in note for note in found.notes)


def test_a_log_that_was_cut_places_the_requests_that_it_has(tmp_path: Path) -> None:
    engine = Engine().serve([Call(n * 30 * MS, 100 + n * 3, 12) for n in range(40)])
    folder = engine.write(tmp_path)
    (folder / "a").write_text("".join(engine.log().splitlines(keepends=True)[: len(engine.steps) // 2]))

    found = analyze_run(read_run([folder]))

    known = [placed is not None for placed in found.placed]
    assert 10 < sum(known) < 30
    assert all(known[: sum(known) - 4])
    assert all(sum(one.parts.values()) == one.total_ns for one in found.ledgers)


def test_a_log_of_other_requests_places_none(tmp_path: Path) -> None:
    calls = [Call(n * 20 * MS, 100 + n, 10) for n in range(20)]
    folder = Engine().serve(calls).write(tmp_path)
    (folder / "b").write_text(Engine().serve([Call(n * MS, 37 + 5 * n, 9) for n in range(20)]).bench())

    found = analyze_run(read_run([folder]))

    assert found.timeline is None
    assert any("do not follow from the client's requests" in note for note in found.notes)


@pytest.mark.real_traces
@pytest.mark.parametrize("name", NAMES)
def test_recorded_servers_are_explained_to_the_step(name: str) -> None:
    found = analysis(name)

    assert found.membership is not None
    assert found.run.iterations is not None
    assert found.membership.steps == len(found.run.iterations)
    assert (found.membership.mismatched, found.membership.foreign) == (0, 0)
    assert all(found.placed)


@pytest.mark.real_traces
def test_preemptions_are_those_that_the_server_counted() -> None:
    found = analysis("kv-preemption")

    assert sum(len(one.preempted) for one in found.placed if one is not None) == found.run.counted("num_preemptions")


@pytest.mark.real_traces
@pytest.mark.parametrize("name", NAMES)
def test_times_in_steps_are_those_that_the_server_measured(name: str) -> None:
    """The server's own sums of queue and inference, of which the ledger uses none."""
    found = analysis(name)
    assert found.timeline is not None
    placed = [one for one in found.placed if one is not None]
    ours = sum(int(found.timeline.end_ns[one.last_step] - found.timeline.start_ns[one.first_step]) for one in placed)
    theirs = (found.run.counted("request_inference_time_seconds_sum") or 0) * 1e9
    queued = (found.run.counted("request_queue_time_seconds_sum") or 0) * 1e9

    assert ours == pytest.approx(theirs, rel=0.02)
    assert sum(one.of(Part.QUEUE) for one in found.ledgers) == pytest.approx(queued, rel=0.02, abs=3e6 * len(placed))


@pytest.mark.real_traces
@pytest.mark.parametrize("name", NAMES)
def test_the_parts_of_recorded_requests_add_up_to_the_clients_latency(name: str) -> None:
    found = analysis(name)
    assert found.run.client is not None
    for ledger, request in zip(found.ledgers, found.run.client.requests, strict=True):
        outside = ledger.of(Part.LATE_SEND, Part.CLIENT_GATE)
        assert sum(ledger.parts.values()) - outside == request.latency_ns
        assert min(ledger.parts.values()) >= 0


@pytest.mark.real_traces
def test_spans_agree_with_the_steps_of_their_requests() -> None:
    """Two sources that share no clock: the span's time of inference, and the durations of the request's steps."""
    found = analysis("healthy-otel")
    assert found.run.iterations is not None
    elapsed = found.run.iterations.elapsed_ns
    for span, placed in zip(found.spans, found.placed, strict=True):
        assert span is not None
        assert placed is not None
        steps = int(elapsed[placed.first_step : placed.last_step + 1].sum())
        assert 0 <= span.inference_ns - steps <= 0.35 * span.inference_ns
