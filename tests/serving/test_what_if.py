"""Answers of the replay to other settings: those that the tests' own scheduler gives, and why there is none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.serving.samples import analysis
from tests.serving.server import MS, Call, Engine, steady

from whystall.diagnosis.units import duration
from whystall.report.document import as_text
from whystall.report.format import UNKNOWN
from whystall.report.what_if_text import what_if_document
from whystall.serving.diagnose import diagnose
from whystall.serving.encoding import as_json
from whystall.serving.folder import read_run
from whystall.serving.machine import Machine
from whystall.serving.predictions import Replayer
from whystall.serving.replay import Load, Played, Server, play
from whystall.serving.run_analysis import Analysis, analyze_run
from whystall.serving.step_model import StepModel
from whystall.serving.what_if import SCHEMA, answer

if TYPE_CHECKING:
    from pathlib import Path


def served(tmp_path: Path, engine: Engine, calls: list[Call]) -> Analysis:
    return analyze_run(read_run([engine.serve(calls).write(tmp_path / "run")]))


def crowd() -> list[Call]:
    """Ten requests at once, and later some alone."""
    return [Call(number * MS, 96, 12) for number in range(10)] + [Call((2 + n) * 1000 * MS, 96, 12) for n in range(6)]


def long_prompts() -> list[Call]:
    """A long prompt among short ones, again and again."""
    return [Call(n * 60 * MS, 1500 if n % 8 == 4 else 64, 20) for n in range(48)]


@pytest.mark.parametrize(
    ("calls", "before", "after", "changes"),
    [
        (crowd(), Engine(max_num_seqs=2), Engine(max_num_seqs=6), {"--max-num-seqs": 6}),
        (crowd(), Engine(max_num_seqs=6), Engine(max_num_seqs=2), {"--max-num-seqs": 2}),
        (long_prompts(), Engine(), Engine(budget=256), {"--max-num-batched-tokens": 256}),
        (long_prompts(), Engine(budget=256), Engine(), {"--max-num-batched-tokens": 2048}),
        (steady(40, output=60, gap=5 * MS), Engine(), Engine(blocks=24), {"--num-gpu-blocks-override": 24}),
    ],
    ids=["more-seqs", "fewer-seqs", "smaller-budget", "larger-budget", "fewer-blocks"],
)
def test_an_answer_is_what_the_other_server_measures(
    tmp_path: Path, calls: list[Call], before: Engine, after: Engine, changes: dict[str, int | bool]
) -> None:
    """The tests' own engine serves both: its steps cost the same, and its machine is never slow."""
    copies = [replace(one, ids=list(one.ids), steps={}, token_at=[]) for one in calls]
    found = answer(served(tmp_path, before, calls), changes)

    assert found.prediction is not None
    assert found.prediction.preemptions[1] == after.serve(copies).preemptions
    e2e = sorted(one.token_at[-1] - one.sent for one in copies)
    middle = (e2e[(len(e2e) - 1) // 2] + e2e[len(e2e) // 2]) / 2
    assert found.prediction.metric("e2e", 50).after_ns == pytest.approx(middle, rel=0.05, abs=MS)
    end = max(one.token_at[-1] for one in copies)
    tokens = sum(one.output for one in copies) * 1e9 / (end - min(one.sent for one in copies))
    assert found.prediction.rate is not None
    assert found.prediction.rate.after == pytest.approx(tokens, rel=0.05)


def test_a_result_that_lacks_times_of_sending_is_replayed_without_these_requests(tmp_path: Path) -> None:
    """A cut file: the last three requests have lengths and no time."""
    server = Engine(max_num_seqs=2).serve(steady(40))
    times = json.loads(server.bench())["start_times"][:-3]
    run = read_run([server.write(tmp_path / "run", start_times=times)])
    assert run.client is not None
    assert len(run.client.requests) == 40

    found = answer(analyze_run(run), {"--max-num-seqs": 6})

    assert found.check is not None
    assert found.prediction is not None


def test_the_headline_has_the_prediction_beside_the_measurement(tmp_path: Path) -> None:
    found = answer(served(tmp_path, Engine(max_num_seqs=2), crowd()), {"--max-num-seqs": 6})

    assert found.prediction is not None
    assert found.check is not None
    then, own = found.prediction.metric("e2e", 50), found.check.metric("e2e", 50)
    assert found.headline == (
        f"With --max-num-seqs 6 the replay predicts {duration(then.after_ns)} ({duration(then.low_ns)} to "
        f"{duration(then.high_ns)}) for the median request, against {duration(then.before_ns)} without the change "
        f"(measured: {duration(own.before_ns)})."
    )


def late_first_tokens(found: Analysis) -> Analysis:
    """The same run with first tokens that came twice as late as the steps say."""
    return replace(found, ledgers=tuple(replace(one, ttft_ns=2 * one.ttft_ns) for one in found.ledgers))


def test_a_metric_that_the_replay_misses_has_no_answer_in_any_form(tmp_path: Path) -> None:
    found = answer(late_first_tokens(served(tmp_path, Engine(max_num_seqs=2), crowd())), {"--max-num-seqs": 6})

    assert found.prediction is not None
    assert {one.name for one in found.prediction.metrics} == {"tpot", "e2e"}
    assert found.prediction.rate is not None
    body = json.loads(as_json(found, SCHEMA))
    assert {one["name"] for one in body["prediction"]["metrics"]} == {"tpot", "e2e"}
    text = as_text(what_if_document(found), 100)
    rows = [line.split() for line in text.splitlines() if line.startswith("TTFT")]
    assert [row[-4:] for row in rows] == [[UNKNOWN] * 4] * 2
    assert "A metric that the replay misses by more than 25.0 % in its own run has no answer." in text


def test_a_report_leaves_out_metrics_that_the_replay_misses(tmp_path: Path) -> None:
    found = diagnose(late_first_tokens(served(tmp_path, Engine(max_num_seqs=1), steady(40))))

    prediction = found.findings[0].prediction
    assert prediction is not None
    assert "e2e" in {one.name for one in prediction.metrics}
    assert "ttft" not in {one.name for one in prediction.metrics}


def test_a_rate_that_the_replay_misses_has_no_answer(tmp_path: Path) -> None:
    replayer = Replayer(served(tmp_path, Engine(max_num_seqs=2), crowd()))
    check = replayer.check
    found = replayer.predict("", server=replace(replayer.server, max_num_seqs=6))
    assert check is not None
    assert found is not None
    assert check.rate is not None

    assert check.trusted_part(found) == found
    missed = replace(check, rate=replace(check.rate, after=2 * check.rate.before))
    assert missed.trusted_part(found) == replace(found, rate=None)


def test_a_replay_that_takes_too_long_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = served(tmp_path, Engine(max_num_seqs=6), crowd())
    monkeypatch.setattr("whystall.serving.engine.MOST_EVENTS", 26)  # the run makes some 20, with one place some 33

    found = answer(run, {"--max-num-seqs": 1})

    assert found.check is not None
    assert found.prediction is None
    assert found.headline.startswith("No answer: the replay with --max-num-seqs 1 is too long (more than ")


@pytest.mark.parametrize("which", ["base", "changed"])
def test_a_single_draw_that_takes_too_long_leaves_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    replayer = Replayer(served(tmp_path, Engine(max_num_seqs=2), crowd()))

    def played(
        loads: Sequence[Load], server: Server, model: StepModel, *, gap_ns: int, machine: Machine
    ) -> Played | None:
        is_given_up = machine is replayer.machines[3] and (server == replayer.server) == (which == "base")
        return None if is_given_up else play(loads, server, model, gap_ns=gap_ns, machine=machine)

    monkeypatch.setattr("whystall.serving.predictions.play", played)

    assert replayer.predict("", server=replace(replayer.server, max_num_seqs=6)) is None


def test_a_setting_that_the_run_had_is_said(tmp_path: Path) -> None:
    found = answer(served(tmp_path, Engine(max_num_seqs=2), crowd()), {"--max-num-seqs": 2})

    assert found.headline == "No change: this run already had --max-num-seqs 2."
    assert found.prediction is None
    assert found.check is not None


def test_a_request_that_never_fits_is_said(tmp_path: Path) -> None:
    found = answer(served(tmp_path, Engine(), crowd()), {"--num-gpu-blocks-override": 3})

    assert found.headline == (
        "No answer: with --num-gpu-blocks-override 3 a request of this load never gets all blocks that it needs."
    )
    assert found.prediction is None


def test_a_server_that_would_not_start_is_said(tmp_path: Path) -> None:
    found = answer(served(tmp_path, Engine(max_num_seqs=64), crowd()), {"--max-num-batched-tokens": 32})

    assert found.headline == (
        "No answer: vLLM does not start with --max-num-batched-tokens 32 below --max-num-seqs 64."
    )


def test_prefixes_need_to_be_known(tmp_path: Path) -> None:
    calls = [replace(one, ids=[]) for one in crowd()]

    found = answer(served(tmp_path, Engine(), calls), {"--enable-prefix-caching": True})

    assert found.headline.startswith("No answer: nothing says which prompts begin alike.")


def test_equal_prompts_are_found_in_the_cache(tmp_path: Path) -> None:
    calls = [Call(n * 100 * MS, 640, 8, ids=list(range(40))) for n in range(20)]

    found = answer(served(tmp_path, Engine(), calls), {"--enable-prefix-caching": True})

    assert found.prediction is not None
    first = found.prediction.metric("ttft", 50)
    # 19 of its 20 blocks need no step: 32 instead of 640 prompt tokens of an eighth of a millisecond.
    assert first.before_ns - first.after_ns == pytest.approx(608 * MS // 8, rel=0.1)


def test_several_engines_have_no_answer(tmp_path: Path) -> None:
    found = analyze_run(replace(read_run([Engine().serve(crowd()).write(tmp_path / "run")]), engines=2))

    assert answer(found, {"--max-num-seqs": 2}).headline == (
        "No answer: the log is of 2 engines, and the replay has one."
    )


@pytest.mark.parametrize(
    ("missing", "words"),
    [("a", "no line of a step is here"), ("b", "no file names single requests")],
    ids=["no-log", "no-client"],
)
def test_missing_files_are_named(tmp_path: Path, missing: str, words: str) -> None:
    folder = Engine().serve(crowd()).write(tmp_path / "run")
    (folder / missing).unlink()

    found = answer(analyze_run(read_run([folder])), {"--max-num-seqs": 2})

    assert found.headline.startswith("No answer: ")
    assert words in found.headline
    assert found.check is None


def test_asynchronous_scheduling_and_a_closed_loop_are_said(tmp_path: Path) -> None:
    run = read_run([Engine().serve(crowd()).write(tmp_path / "run", max_concurrency=16)])
    found = analyze_run(replace(run, settings=replace(run.settings, async_scheduling=True)))

    notes = answer(found, {"--max-num-seqs": 2}).notes

    assert any("asynchronously" in one for one in notes)
    assert "the replay keeps the client's limit of 16 requests at a time" in notes


@pytest.mark.parametrize("waits", [[], [0.0] * 16], ids=["not-recorded", "of-another-limit"])
def test_waits_in_the_client_that_explain_nothing_are_said(tmp_path: Path, waits: list[float]) -> None:
    """Ten requests are under way at once, for any limit that the file names."""
    folder = Engine().serve(crowd()).write(tmp_path / "run", max_concurrency=2, queue_times=waits)

    found = answer(analyze_run(read_run([folder])), {"--max-num-seqs": 2})

    assert found.check is not None
    assert found.check.is_trusted
    assert any("kept to 2 requests at a time, and its recorded waits do not explain" in one for one in found.notes)


def test_a_client_sends_sooner_where_the_server_is_faster(tmp_path: Path) -> None:
    """Twelve requests at once, two at a time by the client; with six they take less time in all."""
    calls = [Call(0, 96, 20) for _ in range(12)]
    engine = Engine().serve(calls[:2])
    for one in range(2, 12, 2):  # the next two are sent when two are back
        done = max(call.token_at[-1] for call in engine.calls)
        pair = [Call(0, 96, 20, gate=done) for _ in range(2)]
        calls[one : one + 2] = pair
        engine = Engine().serve(
            [replace(call, steps={}, token_at=[], computed=0, blocks=0) for call in calls[: one + 2]]
        )
    found = answer(analyze_run(read_run([engine.write(tmp_path / "run", max_concurrency=2)])), {"--max-concurrency": 6})

    assert found.check is not None
    assert found.check.rate is not None
    assert found.check.rate.after == pytest.approx(found.check.rate.before, rel=0.02)
    assert found.prediction is not None
    assert found.prediction.rate is not None
    assert found.prediction.rate.after > 2 * found.prediction.rate.before
    assert "these times begin when the client sends a request: they contain no wait in the client" in found.notes


def test_steps_larger_than_any_recorded_are_said(tmp_path: Path) -> None:
    found = answer(served(tmp_path, Engine(max_num_seqs=1), crowd()), {"--max-num-seqs": 6})

    assert (
        "the replay has steps of up to 6 requests, the recording has at most 1: the cost of larger steps is "
        "extrapolated" in found.notes
    )


def test_a_verdict_needs_all_draws(tmp_path: Path) -> None:
    """The same pace with and without the change: a wide interval of both is no doubt about which one is better."""
    engine = Engine(max_num_seqs=2, cost=lambda prompt, rows, step: (4 + 30 * (step % 40 > 25)) * MS + prompt * MS // 8)
    found = answer(
        served(tmp_path, engine, [*crowd(), *(Call(n * 40 * MS, 64, 30) for n in range(60))]), {"--max-num-seqs": 6}
    )

    assert found.prediction is not None
    e2e = found.prediction.metric("e2e", 50)
    assert e2e.verdict == "better"
    assert e2e.change is not None
    assert e2e.change[1] < 1


def test_spans_show_the_way_to_the_queue(tmp_path: Path) -> None:
    """Each request takes 9 ms to the scheduler, which a queue hides from the steps, and spans do not."""
    calls = [replace(one, front=9 * MS) for one in crowd()]
    found = analyze_run(read_run([Engine(max_num_seqs=1).serve(calls).write(tmp_path / "run", spans=True)]))
    copies = [replace(one, steps={}, token_at=[], computed=0, blocks=0) for one in calls]
    other = Engine(max_num_seqs=8).serve(copies)

    answered = answer(found, {"--max-num-seqs": 8})

    assert answered.prediction is not None
    first = sorted(one.token_at[0] - one.sent for one in other.calls)
    median = (first[7] + first[8]) / 2
    assert answered.prediction.metric("ttft", 50).after_ns == pytest.approx(median, abs=3 * MS)


@pytest.mark.real_traces
def test_a_far_off_replay_gives_no_answer() -> None:
    """A run whose requests took ten times as long as its steps allow."""
    found = analysis("healthy")
    client = found.run.client
    assert client is not None
    slow = tuple(replace(one, total_ns=10 * one.total_ns, parts=dict(one.parts)) for one in found.ledgers)

    answered = answer(replace(found, ledgers=slow), {"--max-num-seqs": 2})

    assert answered.prediction is None
    assert answered.headline.startswith("No answer: the replay of the run as it was is ")
