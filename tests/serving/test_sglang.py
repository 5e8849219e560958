"""SGLang's files: its log, its request metrics and its /metrics, read as vLLM's are."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from tests.serving import sglang_server
from tests.serving.server import MS, Engine, steady

from whystall.report.document import as_text
from whystall.report.serving_text import serving_document
from whystall.serving.cause import flags
from whystall.serving.folder import read_run
from whystall.serving.outcome import Outcome, explain_run
from whystall.serving.parts import Part
from whystall.serving.records import SGLANG
from whystall.serving.rules import RULES
from whystall.serving.run_analysis import analyze_run
from whystall.serving.server_words import words_of
from whystall.serving.what_if import answer


@pytest.fixture
def engine() -> Engine:
    return Engine().serve(steady(30))


def explained(engine: Engine, folder: Path, names: str, *, client: bool = False) -> Outcome:
    sglang_server.write(engine, folder, client=client)
    return explain_run([folder / name for name in names])


def text_of(found: Outcome) -> str:
    return as_text(serving_document(found), 100)


def test_each_exported_request_has_its_phases(tmp_path: Path, engine: Engine) -> None:
    (tmp_path / "a").write_text(sglang_server.request_metrics(engine))

    found = analyze_run(read_run([tmp_path]))

    assert len(found.ledgers) == len(engine.calls)
    for ledger, call in zip(found.ledgers, engine.calls, strict=True):
        begin, first = engine.steps[call.first_step].begin, call.token_at[0] - engine.out
        assert sum(ledger.parts.values()) == ledger.total_ns
        assert ledger.of(Part.QUEUE) == pytest.approx(call.queued, abs=2)
        assert ledger.of(Part.PREFILL) == pytest.approx(first - begin, abs=2000)  # wall clocks are floats of seconds
        assert ledger.ttft_ns == pytest.approx(first - call.sent - call.front // 2, abs=2000)
        assert ledger.output_tokens == call.output


def test_requests_of_a_client_are_joined_in_their_order(tmp_path: Path, engine: Engine) -> None:
    sglang_server.write(engine, tmp_path, client=True)

    found = analyze_run(read_run([tmp_path / "b", tmp_path / "e"]))

    for ledger, call in zip(found.ledgers, engine.calls, strict=True):
        assert ledger.total_ns == call.token_at[-1] - call.sent
        assert ledger.of(Part.HTTP) == pytest.approx(engine.out + call.front // 2, abs=2000)
        assert ledger.of(Part.QUEUE) == pytest.approx(call.queued, abs=2)


def test_requests_of_another_load_are_not_joined(tmp_path: Path, engine: Engine) -> None:
    (tmp_path / "a").write_text(sglang_server.request_metrics(Engine().serve(steady(30, output=7))))
    (tmp_path / "b").write_text(engine.bench())

    found = analyze_run(read_run([tmp_path]))

    assert found.spans == (None,) * 30


def test_metrics_give_the_mean_request(tmp_path: Path, engine: Engine) -> None:
    means = explained(engine, tmp_path, "cd").server_means

    calls = engine.calls
    assert means is not None
    assert means.requests == len(calls)
    assert sum(means.parts.values()) == means.total_ns
    assert means.parts.get(Part.QUEUE, 0) == pytest.approx(sum(one.queued for one in calls) / len(calls), abs=1)
    decode = sum(one.token_at[-1] - one.token_at[0] for one in calls) / len(calls)
    assert means.parts[Part.GENERATION] == pytest.approx(decode, abs=2)
    assert means.prompt_tokens == sum(one.prompt for one in calls) / len(calls)


@pytest.mark.parametrize(("ranks", "engines"), [((0, 1), ()), ((0,), (0, 1)), ((2, 3), (0, 1))])
def test_ranks_count_once_and_engines_add_up(
    tmp_path: Path, engine: Engine, ranks: tuple[int, ...], engines: tuple[int, ...]
) -> None:
    for name, done in (("a", False), ("b", True)):
        (tmp_path / name).write_text(sglang_server.metrics(engine, done=done, ranks=ranks, engines=engines))

    run = read_run([tmp_path])

    assert run.counted("request_queue_time_seconds_count") == pytest.approx(len(engine.calls))
    assert run.counted("scheduler_stage_seconds.run_batch") == pytest.approx(3.0)
    assert run.engines == max(len(engines), 1)


def test_the_loop_of_the_scheduler_is_shown(tmp_path: Path, engine: Engine) -> None:
    found = explained(engine, tmp_path, "cd")

    assert found.loop is not None
    assert dict(found.loop.stages_ns) == {"run_batch": 3 * 10**9, "idle": 10**9}
    assert "run batch  3.00 s  75.0 %" in text_of(found)
    assert "Forward passes on the device: decode 2.50 s." in text_of(found)


def test_the_log_has_batches_settings_and_times_of_requests(tmp_path: Path) -> None:
    engine = Engine(max_num_seqs=2, budget=512).serve(steady(20, gap=10 * MS))
    sglang_server.write(engine, tmp_path)

    run = read_run([tmp_path / "a"])

    lines, readings = run.batches, run.readings
    assert lines is not None
    assert readings is not None
    assert lines.prefills == sum(step.context > 0 for step in engine.steps)
    assert lines.prompt_tokens == sum(one.prompt for one in engine.calls)
    assert int(readings.running.max()) == 2
    assert [row[2:] for row in lines.durations] == [(one.prompt, one.output) for one in engine.calls]
    assert (run.settings.max_num_seqs, run.settings.max_num_batched_tokens) == (2, 512)
    assert (run.settings.prefix_caching, run.settings.async_scheduling, run.settings.device) == (True, True, "cuda")
    means = analyze_run(run).means
    assert means is not None
    queued = sum(one.queued for one in engine.calls) / len(engine.calls)
    assert means.parts[Part.QUEUE] == pytest.approx(queued, abs=5000)  # the log has hundredths of a millisecond


@pytest.mark.parametrize(
    "line",
    [
        (
            "[2025-06-06 10:23:32 TP0] Prefill batch. #new-seq: 2, #new-token: 8191, #cached-token: 9, "
            "token usage: 0.91, #running-req: 1, #queue-req: 7"
        ),
        (
            "[2026-09-22 01:06:11] Prefill batch [17], #new-seq: 2, #new-token: 8191, #cached-token: 9, "
            "full token usage: 0.43, mamba usage: 0.91, #running-req: 1, #queue-req: 7, #pending-token: 3, "
            "cuda graph: True, input throughput (token/s): 2667.10"
        ),
        (
            "[2026-06-27 10:02:58 PP0 ATTN_CP1 TP1 EP1] Prefill batch, #new-seq: 2, #new-token: 8191, "
            "#cached-token: 9, token usage: 0.91, #running-req: 1, #queue-req: 7, npu graph: False, "
            "input throughput (token/s): 2.94"
        ),
    ],
    ids=["2025", "two-pools", "ranks"],
)
def test_lines_of_other_versions_are_read(tmp_path: Path, line: str) -> None:
    (tmp_path / "log").write_text(line + "\n")

    run = read_run([tmp_path])

    lines, readings = run.batches, run.readings
    assert lines is not None
    assert readings is not None
    assert (lines.prefills, lines.prompt_tokens, lines.cached_tokens) == (1, 8191, 9)
    assert (readings.running.tolist(), readings.waiting.tolist(), readings.kv_permille.tolist()) == ([3], [7], [910])


@pytest.mark.parametrize("names", ["ab", "acd", "a"], ids=["requests", "metrics", "log"])
def test_too_few_places_are_named_with_sglangs_flag(tmp_path: Path, names: str) -> None:
    found = explained(Engine(max_num_seqs=2).serve(steady(60, gap=10 * MS)), tmp_path, names)

    assert found.findings
    assert found.findings[0].cause.id == "sched.max-num-seqs"
    assert "--max-running-requests is 2" in found.headline
    assert set(found.flags) == {"--max-running-requests"}
    assert "--max-num-seqs" not in text_of(found)


@pytest.mark.parametrize("names", ["ab", "acd", "a"], ids=["requests", "metrics", "log"])
def test_a_full_cache_is_named_with_sglangs_flags(tmp_path: Path, names: str) -> None:
    engine = Engine(blocks=12).serve(steady(gap=20 * MS, output=120))
    assert engine.preemptions

    found = explained(engine, tmp_path, names)

    assert found.findings[0].cause.id == "kv.pressure"
    assert "--mem-fraction-static" in found.flags
    assert "--gpu-memory-utilization" not in text_of(found)


@pytest.mark.parametrize("names", ["ab", "acd", "a", "abcde"])
def test_a_healthy_server_is_not_accused(tmp_path: Path, engine: Engine, names: str) -> None:
    assert explained(engine, tmp_path, names, client=True).findings == ()


@pytest.mark.parametrize("names", ["a", "b", "cd", "abcd", "abcde"])
def test_no_prompt_key_path_model_or_id_is_shown(tmp_path: Path, engine: Engine, names: str) -> None:
    found = explained(engine, tmp_path, names, client=True)

    assert "secret" not in text_of(found)
    assert b"secret" not in msgspec.json.encode(msgspec.to_builtins(found))
    planted = [name for name in "abcde" if "secret" in (tmp_path / name).read_text()]
    assert planted == list("abcde")


def test_each_remedy_has_words_for_sglang() -> None:
    """Four flags of remedies have no counterpart; all others are named as SGLang names them."""
    words = words_of(SGLANG)
    named = {flag for rule in RULES for flag in rule.cause.flags}

    assert named <= set(flags())
    alone = {flag for flag in named if words.of(flag) not in words.flags()}
    assert alone == {
        "--data-parallel-external-lb",
        "--logits-processors",
        "--long-prefill-token-threshold",
        "--speculative-config",
    }
    assert {words.of(flag) for flag in alone} == {f"vLLM's {flag}" for flag in alone}
    assert words_of(None).of("--max-num-seqs") == "--max-num-seqs"


@pytest.mark.parametrize("flag", ["--max-concurrency", "--workers-max", "--max-running-requests", "--enable-metrics"])
def test_flags_of_the_client_and_of_sglang_stay_as_they_are(flag: str) -> None:
    """Those of the load's client, which remedies name, and SGLang's own, which sentences on missing files name."""
    assert words_of(SGLANG).of(f"Raise {flag}.") == f"Raise {flag}."


def test_a_replay_of_sglang_is_refused(tmp_path: Path, engine: Engine) -> None:
    sglang_server.write(engine, tmp_path, client=True)

    found = answer(analyze_run(read_run([tmp_path])), {"--max-num-seqs": 2})

    assert found.headline.startswith("No answer: the replay has vLLM's scheduler")


def test_records_without_times_are_counted(tmp_path: Path, engine: Engine) -> None:
    good = sglang_server.request_metrics(engine)
    (tmp_path / "a").write_text(good + '{"request_parameters": "{}", "e2e_latency": 1.0}\n{"request_par\n')

    run = read_run([tmp_path])

    assert len(run.spans) == len(engine.calls)
    assert any(re.search(r"no times of a request: 2 ", note) for note in run.notes)
