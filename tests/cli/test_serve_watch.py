"""``whystall serve watch``: reads a server that it did not start, reports at intervals, and leaves it alone."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.serving import sglang_server
from tests.serving.server import Engine, steady

from whystall.serving.outcome import explain_run

if TYPE_CHECKING:
    from .conftest import Cli

SOON = ("--every", "0.34", "--for", "3")


class Metrics(ThreadingHTTPServer):
    """A server whose counters stand still at first, and have a whole load from its second reading on."""

    daemon_threads = True

    def __init__(self, texts: tuple[str, str], status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.texts = [text.encode() for text in texts]
        self.status = status
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """A client that leaves is no event."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Metrics

    def do_GET(self) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        body = self.server.texts[min(len(self.server.asked) - 1, 1)]
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Location", "http://127.0.0.1:9/")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def serving(server: Metrics) -> Iterator[Metrics]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def queued() -> Engine:
    return Engine(max_num_seqs=1).serve(steady(30))


def texts(engine: Engine) -> tuple[str, str]:
    more = 'vllm:num_requests_running{engine="0",model_name="/secret/model"} 1.0\n'
    return engine.metrics(done=False) + more, engine.metrics() + more


@pytest.fixture
def vllm() -> Iterator[Metrics]:
    yield from serving(Metrics(texts(queued())))


@pytest.fixture
def sglang() -> Iterator[Metrics]:
    engine = queued()
    yield from serving(Metrics((sglang_server.metrics(engine, done=False), sglang_server.metrics(engine))))


def test_it_reports_on_the_readings_and_keeps_them(cli: Cli, vllm: Metrics, tmp_path: Path) -> None:
    outcome = cli("serve", "watch", vllm.url, *SOON, "-o", tmp_path / "run")

    assert outcome.code == 0
    assert "30 requests by the server's count; read: vLLM /metrics" in outcome.out
    assert "queue of the scheduler" in outcome.out
    assert outcome.err.splitlines()[-1].startswith(f"next: whystall serve report {tmp_path / 'run'} RESULT")
    assert set(vllm.asked) == {"GET /metrics"}
    assert 2 <= len(vllm.asked) <= 10  # no more than three a second
    later = explain_run([tmp_path / "run"])
    assert later.server_means is not None
    assert later.server_means.requests == 30
    assert json.loads((tmp_path / "run" / "run.json").read_text())["exit_code"] == 0


def test_a_server_of_sglang_is_followed(cli: Cli, sglang: Metrics, tmp_path: Path) -> None:
    outcome = cli("serve", "watch", f"{sglang.url}/metrics", *SOON, "-o", tmp_path / "run", "--json")

    answer = json.loads(outcome.out)
    assert answer["server_means"]["requests"] == 30
    assert answer["loop"]["stages_ns"] == {"run_batch": 3 * 10**9, "idle": 10**9}
    assert "secret" not in outcome.out + outcome.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_a_report_and_leaves_the_server(vllm: Metrics, tmp_path: Path, number: int) -> None:
    command = [sys.executable, "-m", "whystall", "serve", "watch", vllm.url, "--every", "0.34", "--report-every", "1"]
    with subprocess.Popen(
        [*command, "-o", str(tmp_path / "run")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        for line in watching.stdout:
            if "prompt and output tokens" in line:  # the end of the first report
                break
        watching.send_signal(number)
        out, err = watching.communicate(timeout=60)

    assert watching.returncode == 0
    assert "30 requests by the server's count" in out
    assert "Traceback" not in err
    with socket.create_connection(("127.0.0.1", vllm.server_port), timeout=10):
        pass  # still there


def test_an_address_without_a_server_is_an_input_error(cli: Cli, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    outcome = cli("serve", "watch", f"127.0.0.1:{port}", "--for", "1", "-o", tmp_path / "run")

    assert outcome.code == 3
    assert outcome.err.splitlines()[-1] == (
        f"whystall: 127.0.0.1:{port}: /metrics is not there: nothing answers at this address"
    )


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        ("# HELP other x\n# TYPE other gauge\nother 1.0\n", 200, "has no series of vLLM's or SGLang's"),
        ("moved", 302, "answered with status 302"),
    ],
    ids=["another-exporter", "redirect"],
)
def test_another_answer_is_said(cli: Cli, tmp_path: Path, body: str, status: int, why: str) -> None:
    for server in serving(Metrics((body, body), status)):
        outcome = cli("serve", "watch", server.url, *SOON, "-o", tmp_path / "run")
        assert outcome.code == 3
        assert outcome.err.splitlines()[-1] == f"whystall: {server.url}: /metrics {why}"


@pytest.mark.parametrize(
    "address",
    [
        "ftp://127.0.0.1:1",
        "http://user:secret@127.0.0.1:1",
        "http://",
        "http://127.0.0.1:none",
        "http://[::1",
        "http://a/b c",
    ],
)
def test_an_address_that_is_none_is_refused(cli: Cli, tmp_path: Path, address: str) -> None:
    outcome = cli("serve", "watch", address, *SOON, "-o", tmp_path / "run")

    assert outcome.code == 2
    assert "is no address of a server" in outcome.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "words",
    [("--every", "0.1"), ("--report-every", "0"), ("--for", "-1"), ("--for", "soon"), ("another",)],
)
def test_options_that_make_no_sense_are_refused(cli: Cli, tmp_path: Path, words: tuple[str, ...]) -> None:
    outcome = cli("serve", "watch", "http://127.0.0.1:1", "-o", tmp_path / "run", *words)

    assert outcome.code == 2
    assert not (tmp_path / "run").exists()


def test_a_folder_with_a_run_is_not_overwritten(cli: Cli, vllm: Metrics, tmp_path: Path) -> None:
    assert cli("serve", "watch", vllm.url, *SOON, "-o", tmp_path / "run").code == 0

    assert cli("serve", "watch", vllm.url, *SOON, "-o", tmp_path / "run").code == 2
    assert cli("serve", "watch", vllm.url, *SOON, "-o", tmp_path / "run", "-f").code == 0
