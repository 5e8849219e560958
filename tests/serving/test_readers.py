"""Files of other clients and exporters, written as these tools write them; the truth is the tests' own server."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tests.serving.samples import folder
from tests.serving.server import MS, Engine, steady

from whystall.errors import InputError
from whystall.serving.folder import read_run
from whystall.serving.parts import Part
from whystall.serving.run_analysis import analyze_run

WALL = 1_795_868_899 * 10**9


@pytest.fixture
def engine() -> Engine:
    return Engine().serve(steady(20))


def test_aiperf_gives_the_wait_before_sending(tmp_path: Path, engine: Engine) -> None:
    rows = []
    for number, one in enumerate(engine.calls):
        times = {
            "request_start_ns": WALL + one.sent,
            "request_end_ns": WALL + one.token_at[-1],
            "credit_issued_ns": WALL + one.sent - 7 * MS,
            "x_request_id": f"secret-{number}",
            "benchmark_phase": "profiling" if number else "warmup",
        }
        metrics = {
            "time_to_first_token": {"value": (one.token_at[0] - one.sent) / MS, "unit": "ms"},
            "input_sequence_length": {"value": one.prompt, "unit": "tokens"},
            "output_sequence_length": {"value": one.output, "unit": "tokens"},
        }
        rows.append(json.dumps({"metadata": times, "metrics": metrics, "error": None}))
    (tmp_path / "profile_export.jsonl").write_text("\n".join([*rows, "{cut"]))

    run = read_run([tmp_path])

    assert run.client is not None
    assert len(run.client.requests) == 19
    for request, call in zip(run.client.requests, engine.calls[1:], strict=True):
        assert (request.latency_ns, request.gate_ns) == (call.token_at[-1] - call.sent, 7 * MS)
        assert request.ttft_ns == call.token_at[0] - call.sent
        assert (request.input_tokens, request.output_tokens) == (call.prompt, call.output)
    assert any("no record of a request: 1" in note for note in run.notes)


def test_sglangs_client_has_no_times_of_sending(tmp_path: Path, engine: Engine) -> None:
    body = json.loads(engine.bench())
    for name in ("start_times", "queue_times", "latencies"):
        del body[name]
    older = json.dumps(body | {"ttfts": [9.0] * len(engine.calls), "server_info": {"api_key": "secret"}})
    (tmp_path / "log.jsonl").write_text(f"{older}\n{json.dumps(body)}\n")  # a line a run, the last one counts

    found = analyze_run(read_run([tmp_path]))

    for call, ledger in zip(engine.calls, found.ledgers, strict=True):
        assert ledger.total_ns == pytest.approx(call.token_at[-1] - call.sent, abs=len(call.token_at))
        assert ledger.of(Part.BEFORE_FIRST_TOKEN) == call.token_at[0] - call.sent


def test_spans_in_requests_of_exporters_are_those_of_single_lines(tmp_path: Path, engine: Engine) -> None:
    lines = [json.loads(line) for line in engine.spans().splitlines()]
    wrapped = {"resourceSpans": [{"scopeSpans": [{"spans": [*lines, {"name": "load_model", "attributes": []}]}]}]}
    (tmp_path / "one").write_text(engine.spans())
    (tmp_path / "other").write_text(json.dumps(wrapped))

    assert read_run([tmp_path / "one"]).spans == read_run([tmp_path / "other"]).spans
    assert len(read_run([tmp_path / "one"]).spans) == 20


@pytest.mark.real_traces
def test_guidellm_gives_lateness_against_its_own_intention() -> None:
    path = folder("guidellm-small") / "guidellm.json.gz"
    truth = json.loads(gzip.decompress(path.read_bytes()))["benchmarks"][0]["requests"]["successful"]

    run = read_run([path])

    assert run.client is not None
    for request, row in zip(run.client.requests, truth, strict=True):
        assert request.sent_ns == pytest.approx(row["request_start_time"] * 1e9, abs=1000)
        assert request.ttft_ns == pytest.approx(row["time_to_first_token_ms"] * 1e6, abs=1000)
        late = row["request_start_time"] - row["info"]["timings"]["targeted_start"]
        assert request.late_ns == pytest.approx(max(late, 0) * 1e9, abs=1000)


def test_metrics_of_an_older_server_keep_their_meaning(tmp_path: Path, engine: Engine) -> None:
    text = engine.metrics().replace("vllm:prefix_cache_", "vllm:gpu_prefix_cache_")
    (tmp_path / "after").write_text(text)
    (tmp_path / "before").write_text(engine.metrics(done=False))

    run = read_run([tmp_path])

    assert run.counted("prefix_cache_queries") == sum(one.prompt for one in engine.calls)


def test_metrics_of_a_server_that_was_started_again_are_not_subtracted(tmp_path: Path, engine: Engine) -> None:
    (tmp_path / "after").write_text(engine.metrics())
    (tmp_path / "before").write_text(engine.metrics(done=False).replace("time_seconds 5.0", "time_seconds 3.0"))

    run = read_run([tmp_path])

    assert run.counted("num_preemptions") is None
    assert any("different server processes" in note for note in run.notes)


def test_a_line_without_end_is_left_out(tmp_path: Path, engine: Engine) -> None:
    (tmp_path / "log").write_text(engine.log() + "x" * (3 << 20) + "\n" + engine.log())

    run = read_run([tmp_path])

    assert run.iterations is not None
    assert len(run.iterations) == 2 * len(engine.steps)


def test_limits_that_the_log_shows_stand_in_for_its_settings(tmp_path: Path) -> None:
    engine = Engine(max_num_seqs=3, budget=64).serve(steady(40, gap=5 * MS))
    lines = engine.log().splitlines(keepends=True)[2:]
    counts = (
        "Engine 000: Avg prompt throughput: 1.0 tokens/s, Running: 3 reqs, Waiting: 9 reqs, GPU KV cache usage: 1.0%\n"
    )
    (tmp_path / "log").write_text("".join(lines) + counts)
    (tmp_path / "client").write_text(engine.bench())

    found = analyze_run(read_run([tmp_path]))

    assert (found.settings.max_num_seqs, found.settings.max_num_batched_tokens) == (3, 64)
    assert found.membership is not None
    assert found.membership.mismatched == 0


def test_a_file_of_another_kind_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"name": "something", "value": 1}')
    with pytest.raises(InputError, match="no file of a served run"):
        read_run([tmp_path])
