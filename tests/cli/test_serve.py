"""``whystall serve report``: its text, its JSON, what it refuses, and what it never shows."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.serving.server import MS, Call, Engine, steady

from whystall.errors import InputError
from whystall.serving.outcome import explain_run
from whystall.trace.files import Limits

if TYPE_CHECKING:
    from .conftest import Cli

GOLDEN = Path(__file__).parent / "golden"


def few_places(folder: Path) -> Path:
    """Three requests at once for one place: numbers that can be worked out by hand."""
    calls = [Call(number * MS, 96, 8, front=2 * MS) for number in range(3)]
    calls += [Call(1000 * MS + number * 100 * MS, 96, 8, front=2 * MS) for number in range(4)]
    return Engine(max_num_seqs=1).serve(calls).write(folder)


def test_the_text_is_that_of_the_golden_file(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("serve", "report", few_places(tmp_path / "run"))

    assert outcome.code == 0
    assert outcome.out == (GOLDEN / "serve.txt").read_text("utf-8")
    assert outcome.err == "next: repeat the same arrivals with the change, and compare both reports\n"


def test_the_sums_of_the_golden_run_are_those_worked_out_by_hand(cli: Cli, tmp_path: Path) -> None:
    """One request alone: 2 ms to the scheduler, a step of 16.1 ms, seven of 4.1 ms, 0.5 ms between and behind."""
    answer = json.loads(cli("serve", "report", few_places(tmp_path / "run"), "--json").out)

    alone = answer["ledgers"][-1]
    assert alone["total_ns"] == int((2 + 16.1 + 7 * 4.1 + 7 * 0.5 + 0.5) * MS)
    # A client sees a step's end with its token, 0.5 ms late: that and the way in are 2.5 ms, less the usual gap.
    assert alone["parts"] == {
        "http_and_front": 2_000_000,
        "own_prefill": 16_100_000,
        "decode": 28_700_000,
        "engine_gap": 7 * 500_000 + 500_000,
    }
    # The third of the first three waits for the steps of two others, from 1 ms after the first was sent.
    third = answer["ledgers"][2]
    others = 2 * (16.1 + 7 * 4.1 + 8 * 0.5)
    assert third["total_ns"] == pytest.approx((others - 2 + 2 + 16.1 + 7 * 4.1 + 7 * 0.5 + 0.5) * MS, abs=5)


def test_json_holds_the_verdict_and_both_ledgers(cli: Cli, tmp_path: Path) -> None:
    Engine(max_num_seqs=1).serve(steady()).write(tmp_path / "run")

    answer = json.loads(cli("serve", "report", tmp_path / "run", "--json").out)

    assert answer["schema"] == "whystall.serving/1"
    assert answer["blame"] == "configuration"
    assert answer["findings"][0]["cause"]["id"] == "sched.max-num-seqs"
    assert answer["headline"] == answer["findings"][0]["headline"]
    for name in ("p50", "p99"):
        assert sum(answer[name]["parts"].values()) == answer[name]["total_ns"]
    assert answer["placement"]["mismatched_steps"] == 0
    assert answer["findings"][0]["prediction"]["metrics"][0]["name"] == "ttft"


def test_no_prompt_key_path_or_model_is_shown(cli: Cli, tmp_path: Path) -> None:
    """The tests' files hold them in the log, the client's result, the spans and the metrics."""
    folder = (
        Engine().serve(steady(20)).write(tmp_path / "run", spans=True, errors=["Traceback /secret/x.py"] + [""] * 19)
    )
    planted = [path for path in folder.iterdir() if b"secret" in _content(path)]

    for options in ((), ("--json",), ("-v",)):
        outcome = cli("serve", "report", folder, *options)
        assert outcome.code == 0
        assert "secret" not in outcome.out + outcome.err
    assert len(planted) == 5


def _content(path: Path) -> bytes:
    body = path.read_bytes()
    return gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body


def test_a_failed_request_is_counted_and_in_no_ledger(cli: Cli, tmp_path: Path) -> None:
    engine = Engine().serve(steady(20))
    errors = ["Traceback (most recent call last): /secret"] + [""] * 19
    answer = json.loads(cli("serve", "report", engine.write(tmp_path / "run", errors=errors), "--json").out)

    assert (answer["requests"], answer["failed"]) == (19, 1)
    assert any("one request failed" in note for note in answer["notes"])


@pytest.mark.parametrize("missing", ["a", "b", "c", "d", "e", "abcd", "acde", "bcde", "acd"])
def test_files_may_be_missing(cli: Cli, tmp_path: Path, missing: str) -> None:
    folder = Engine().serve(steady(30)).write(tmp_path / "run", spans=True)
    for name in missing:
        (folder / name).unlink()

    outcome = cli("serve", "report", folder)

    assert outcome.code == 0
    assert "Traceback" not in outcome.out + outcome.err


def test_a_client_alone_has_two_residuals_with_their_flags(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(Engine().serve(steady(30)).bench())

    outcome = cli("serve", "report", tmp_path / "result.json")

    assert outcome.out.startswith("No cause shows in these files")
    assert "--enable-logging-iteration-details" in outcome.out
    assert "until the first token" in outcome.out


def test_spans_and_a_client_split_the_phases_of_each_request(cli: Cli, tmp_path: Path) -> None:
    engine = Engine().serve(steady(30))
    (tmp_path / "result").write_text(engine.bench())
    (tmp_path / "spans").write_text(engine.spans())

    answer = json.loads(cli("serve", "report", tmp_path, "--json").out)

    for call, ledger in zip(engine.calls, answer["ledgers"], strict=True):
        first = call.token_at[0] - engine.out - engine.steps[call.first_step].begin
        assert ledger["parts"]["prefill"] == pytest.approx(first, abs=2)
        assert ledger["parts"].get("queue", 0) == pytest.approx(call.queued, abs=2)
        assert sum(ledger["parts"].values()) == ledger["total_ns"]


def test_a_folder_without_such_files_is_an_input_error(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing of a server")

    outcome = cli("serve", "report", tmp_path)

    assert outcome.code == 3
    assert outcome.err.startswith("whystall: no file of a served run is here")
    assert cli("serve", "report", tmp_path / "none").code == 3


def test_a_cut_result_is_said_and_the_rest_is_read(cli: Cli, tmp_path: Path) -> None:
    folder = Engine().serve(steady(30)).write(tmp_path / "run")
    whole = (folder / "b").read_bytes()
    (folder / "b").write_bytes(whole[: len(whole) // 2])

    outcome = cli("serve", "report", folder)

    assert outcome.code == 0
    assert "the client's result is no whole JSON object: was it cut?" in outcome.out


def test_a_log_that_unpacks_beyond_the_limits_is_refused(tmp_path: Path) -> None:
    line = b"(EngineCore pid=1) INFO no step\n"
    (tmp_path / "log.gz").write_bytes(gzip.compress(line * (1 << 17), 9))
    limits = Limits(unpacked_times=2, unpacked_bytes=1 << 20)

    with pytest.raises(InputError, match=r"no file of a served run is here.*holds more than is read"):
        explain_run([tmp_path], limits)
