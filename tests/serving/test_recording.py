"""The parts of ``serve run``: the command, the additions, the receiver of spans, our own lines, the series."""

from __future__ import annotations

import http.client
import json
import random
import sys
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from whystall.serving.folder import read_run
from whystall.serving.readers.metrics_series import HEAD, Counts
from whystall.serving.readers.otlp import ATTRIBUTES
from whystall.serving.recording.command import server_command
from whystall.serving.recording.installed import Installed, installed_for
from whystall.serving.recording.own_lines import OwnLines
from whystall.serving.recording.plan import ENDPOINT, STEPS, additions
from whystall.serving.recording.spans import SpanReceiver, may_be_sent, spans_of

BOTH = Installed(frozenset({STEPS, ENDPOINT}), exports_spans=True)
STEP_LINE = (
    b"(EngineCore pid=2) INFO 11-28 [core.py:1] Engine 000: Iteration(5): 1 context requests, 60 context tokens, 0 "
    b"generation requests, 0 generation tokens, iteration elapsed time: 5.00 ms, CPU KV cache usage: 0.1%\n"
)


@pytest.mark.parametrize(
    ("line", "port"),
    [
        ("vllm serve m", 8000),
        ("vllm serve m --port 81", 81),
        ("vllm serve m --port=81 --port 82", 82),
        ("/opt/env/bin/vllm serve --port 81 m", 81),
        ("env A=b numactl -N 0 vllm serve m --port 81", 81),
        ("python -m vllm.entrypoints.openai.api_server --model m --port 81", 81),
        ("python3.11 -u -m vllm.entrypoints.cli.main serve m --port 81", 81),
        ("vllm serve m --uds /tmp/s", None),
        ("vllm serve m --config c.yaml", None),
        ("vllm serve m --headless", None),
        ("vllm serve m --port x", None),
        ("vllm serve m --port 99999", None),
        ("vllm serve m --port", None),
    ],
)
def test_the_port_is_that_of_the_command(line: str, port: int | None) -> None:
    command = server_command(line.split())
    assert command is not None
    assert command.port == port


@pytest.mark.parametrize(
    "line", ["vllm bench serve", "python serve.py", "bash run.sh", "python -m vllm.entrypoints.cli.main bench", "vllm"]
)
def test_another_command_is_none(line: str) -> None:
    assert server_command(line.split()) is None


def test_flags_are_added_where_the_version_has_them_and_the_user_does_not() -> None:
    def flags(line: str, installed: Installed | None = BOTH, **environment: str) -> tuple[str, ...]:
        words = line.split()
        return additions(words, server_command(words), installed, environment).flags("URL")

    assert flags("vllm serve m") == (STEPS, ENDPOINT, "URL")
    assert flags(f"vllm serve m {STEPS}") == (ENDPOINT, "URL")
    assert flags("vllm serve m --otlp_traces_endpoint=x") == (STEPS,)
    assert flags("vllm serve m", Installed(frozenset({STEPS, ENDPOINT}), exports_spans=False)) == (STEPS,)
    assert flags("vllm serve m", Installed(frozenset({"--port"}), exports_spans=True)) == ()
    assert flags("vllm serve m", None) == ()
    assert flags("vllm serve m --disable-log-stats") == ()
    assert flags("vllm serve m", OTEL_TRACES_SAMPLER="always_off") == (STEPS,)
    assert flags("vllm serve m", HTTPS_PROXY="p", HTTP_PROXY="p") == (STEPS,)
    assert flags("bash run.sh") == ()


@pytest.mark.parametrize(
    ("line", "installed", "reason"),
    [
        ("vllm serve m", BOTH, ""),
        (
            "vllm serve m",
            Installed(frozenset({"--port"}), exports_spans=False),
            "this version of vLLM has no such flag",
        ),
        ("vllm serve m", None, "the vLLM behind the command was not found"),
        (f"vllm serve m {STEPS}", None, ""),
        ("vllm serve m --disable-log-stats", BOTH, "turns off all that could be recorded"),
        ("bash run.sh", None, "the command is no `vllm serve`"),
        (f"bash -c vllm_serve_{STEPS}", None, ""),
    ],
)
def test_one_reason_says_why_a_flag_is_missing(line: str, installed: Installed | None, reason: str) -> None:
    found = additions(line.split(), server_command(line.split()), installed, {}).reason
    assert (reason in found) if reason else found == ""


def test_the_users_environment_for_spans_is_left_alone() -> None:
    assert may_be_sent({"PATH": "x"})
    assert not may_be_sent({"OTEL_EXPORTER_OTLP_HEADERS": "x"})


def test_an_installed_server_is_read_and_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "vllm" / "engine"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    (package / "arg_utils.py").write_text(f'group.add_argument("{STEPS}")\nx = "--not a flag"')
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = server_command([sys.executable, "-m", "vllm.entrypoints.openai.api_server"])
    assert command is not None

    found = installed_for(command)

    assert found is not None
    assert found.flags == {STEPS}
    assert not (tmp_path / "imported").exists()


def test_a_program_that_is_no_python_script_is_unknown(tmp_path: Path) -> None:
    for name, content in (("a", "#!/bin/sh\n"), ("b", "\x7fELF"), ("c", "#!/none/python\n")):
        program = tmp_path / name / "vllm"
        program.parent.mkdir()
        program.write_text(content)
        program.chmod(0o755)
        command = server_command([str(program), "serve", "m"])
        assert command is not None
        assert installed_for(command) is None


def _export(requests: int = 2) -> ExportTraceServiceRequest:
    message = ExportTraceServiceRequest()
    resource = message.resource_spans.add()
    resource.resource.attributes.add(key="secret-host").value.string_value = "secret"
    spans = resource.scope_spans.add().spans
    spans.add(name="load_model", trace_id=b"x" * 16)
    for number in range(requests):
        span = spans.add(name="llm_request", trace_id=b"y" * 16, start_time_unix_nano=10**18 + number)
        for name in sorted(ATTRIBUTES):
            value = span.attributes.add(key=name).value
            if name == "gen_ai.request.id":
                value.string_value = f"cmpl-{number}-0"
            elif "usage" in name:
                value.int_value = 7 + number
            else:
                value.double_value = 0.25 * number
        span.attributes.add(key="gen_ai.prompt").value.string_value = "the secret prompt"
        span.events.add(name="secret event")
    return message


def test_spans_are_those_of_the_message_without_its_secrets() -> None:
    found = list(spans_of(_export().SerializeToString()))
    assert [one["startTimeUnixNano"] for one in found] == [str(10**18), str(10**18 + 1)]
    attributes = found[1]["attributes"]
    assert isinstance(attributes, list)
    by_key = {one["key"]: one["value"] for one in attributes}
    assert by_key["gen_ai.latency.e2e"] == {"doubleValue": 0.25}
    assert by_key["gen_ai.usage.prompt_tokens"] == {"intValue": "8"}
    assert by_key["gen_ai.request.id"] == {"stringValue": "cmpl-1-0"}
    assert set(by_key) == ATTRIBUTES
    assert "secret" not in json.dumps(found)


def test_a_damaged_message_is_refused_or_read_and_never_more() -> None:
    whole = _export().SerializeToString()
    draw = random.Random(7)  # noqa: S311 - damage
    for _ in range(2_000):
        damaged = bytearray(whole[: draw.randrange(len(whole))])
        for _ in range(draw.randrange(4)):
            if damaged:
                damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        try:
            found = list(spans_of(bytes(damaged)))
        except ValueError:
            continue
        assert len(found) <= 2


def test_the_receiver_keeps_requests_and_answers_all(tmp_path: Path) -> None:
    receiver = SpanReceiver(tmp_path / "spans.jsonl")
    port = int(receiver.endpoint.split(":")[2].split("/")[0])
    name, _, token = receiver.variables["OTEL_EXPORTER_OTLP_TRACES_HEADERS"].partition("=")

    def post(path: str, body: bytes, **headers: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("POST", path, body, {name: token, **headers})
        status = connection.getresponse().status
        connection.close()
        return status

    with receiver.running():
        assert receiver.endpoint == f"http://127.0.0.1:{port}/v1/traces"
        assert post("/v1/traces", _export().SerializeToString()) == 200
        assert post("/v1/traces", b"\xff\xff") == 200
        assert post("/other", b"") == 400
        assert post("/v1/traces", _export().SerializeToString(), **{name: "guessed"}) == 403
        assert post("/v1/traces", b"", **{"Content-Length": str(1 << 40)}) == 400
    receiver.close()

    assert receiver.spans == 2
    assert [one.key for one in read_run([tmp_path / "spans.jsonl"]).spans] == ["cmpl-0-0", "cmpl-1-0"]


def test_a_receiver_says_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whystall.serving.recording.spans._MOST_BYTES", 1)
    receiver = SpanReceiver(tmp_path / "spans.jsonl")
    receiver._take(_export().SerializeToString())
    receiver.close()
    assert receiver.damage is not None
    assert "is cut at" in receiver.damage


def test_a_receiver_on_a_full_disk_goes_on(tmp_path: Path) -> None:
    receiver = SpanReceiver(tmp_path / "none" / "spans.jsonl")
    receiver._take(_export().SerializeToString())
    receiver.close()
    assert receiver.damage is not None
    assert receiver.spans == 0


def test_our_own_lines_are_steps_and_our_requests() -> None:
    own = OwnLines(steps=True)
    own.scrape_from(5001)
    ours = b'INFO:     127.0.0.1:5001 - "GET /metrics HTTP/1.1" 200 OK\n'
    coloured = (
        b'\x1b[32mINFO\x1b[0m:     127.0.0.1:5001 - "\x1b[1mGET /metrics HTTP/1.1\x1b[0m" \x1b[32m200 OK\x1b[0m\n'
    )
    others = b'INFO:     127.0.0.1:50012 - "GET /metrics HTTP/1.1" 200 OK\n'
    assert [line in own for line in (STEP_LINE, ours, coloured, others, b"Iteration(\n")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert STEP_LINE not in OwnLines(steps=False)


@pytest.mark.parametrize(
    ("line", "port"),
    [
        (b"(APIServer pid=1) INFO 11-30 [entry.py:140] Starting vLLM server on http://127.0.0.1:8139\n", 8139),
        (b"INFO 04-01 [api_server.py:1] Starting vLLM API server 0 on http://0.0.0.0:8000\n", 8000),
        (b"INFO Starting vLLM server on http://[::1]:81\n", 81),
        (b"INFO Starting vLLM server on unix:/tmp/x\n", None),
    ],
)
def test_the_announced_port_is_taken(line: bytes, port: int | None) -> None:
    own = OwnLines(steps=True)
    assert own.may_be_in(line)
    assert line not in own
    assert own.announced_port == port


def test_a_series_gives_running_and_waiting_and_a_cut_line_is_left_out(tmp_path: Path) -> None:
    rows = [json.dumps({"at_s": 1.0, "running": 1, "waiting": 4}), json.dumps({"at_s": 2.0}), '{"at_s": 3.0, "run']
    (tmp_path / "x.jsonl").write_text("\n".join([HEAD.decode(), *rows]))
    assert read_run([tmp_path]).waiting == ((1, 4), (0, 0))


def test_counts_differ_by_more_than_time() -> None:
    assert Counts(1.0, running=1).same(Counts(2.0, running=1))
    assert not Counts(1.0, running=1).same(Counts(1.0, running=2))
