"""``whystall serve watch``: reads a server that it did not start, reports at intervals, and leaves it alone."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Protocol, cast

import pytest
from tests.serving import sglang_server
from tests.serving.metrics_server import Metrics, serving, texts
from tests.serving.server import Engine, steady

from whystall.cli.console import Console
from whystall.cli.serve_folder import RunFolder
from whystall.cli.serve_watch import Watch
from whystall.serving.outcome import explain_run
from whystall.serving.recording.own_lines import OwnLines
from whystall.serving.recording.scrape import Endpoint, Scrape

if TYPE_CHECKING:
    from argparse import Namespace

    from .conftest import Cli

OFTEN = ("--every", "0.34")


def queued() -> Engine:
    return Engine(max_num_seqs=1).serve(steady(30))


@pytest.fixture
def vllm() -> Iterator[Metrics]:
    with serving(Metrics(texts(queued()))) as server:
        yield server


@pytest.fixture
def sglang() -> Iterator[Metrics]:
    engine = queued()
    with serving(Metrics((sglang_server.metrics(engine, done=False), sglang_server.metrics(engine)))) as server:
        yield server


class End(Protocol):
    def __call__(self, server: Metrics, *, after: int) -> None: ...


@pytest.fixture
def end(monkeypatch: pytest.MonkeyPatch) -> End:
    """Ends the watch, as Ctrl+C does, when the server has been asked some times: the last answer may be on its way."""

    def end_it(server: Metrics, *, after: int) -> None:
        def wait(_seconds: float) -> None:
            server.wait_for(after)
            raise KeyboardInterrupt

        monkeypatch.setattr("whystall.cli.serve_watch.wait", wait)

    return end_it


def test_it_reports_on_the_readings_and_keeps_them(cli: Cli, vllm: Metrics, tmp_path: Path, end: End) -> None:
    end(vllm, after=3)

    outcome = cli("serve", "watch", vllm.url, *OFTEN, "-o", tmp_path / "run")

    assert outcome.code == 0
    assert "30 requests by the server's count; read: vLLM /metrics" in outcome.out
    assert "queue of the scheduler" in outcome.out
    assert outcome.err.splitlines()[-1].startswith(f"next: whystall serve report {tmp_path / 'run'} RESULT")
    assert set(vllm.asked) == {"GET /metrics"}
    later = explain_run([tmp_path / "run"])
    assert later.server_means is not None
    assert later.server_means.requests == 30
    assert json.loads((tmp_path / "run" / "run.json").read_text())["exit_code"] == 0


def test_a_server_of_sglang_is_followed(cli: Cli, sglang: Metrics, tmp_path: Path, end: End) -> None:
    end(sglang, after=3)

    outcome = cli("serve", "watch", f"{sglang.url}/metrics", *OFTEN, "-o", tmp_path / "run", "--json")

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
def test_another_answer_is_said(cli: Cli, tmp_path: Path, end: End, body: str, status: int, why: str) -> None:
    with serving(Metrics((body, body), status)) as server:
        end(server, after=2)
        outcome = cli("serve", "watch", server.url, *OFTEN, "-o", tmp_path / "run")

    assert outcome.code == 3
    assert outcome.err.splitlines()[-1] == f"whystall: {server.url}: /metrics {why}"


def test_a_watch_of_a_second_has_a_reading(cli: Cli, vllm: Metrics, tmp_path: Path) -> None:
    outcome = cli("serve", "watch", vllm.url, "--for", "1", "-o", tmp_path / "run")

    assert outcome.code == 0
    assert vllm.asked
    assert (tmp_path / "run" / "serve-metrics-before.txt").exists()


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        ("answered with status 503", "the last reading is 60 s old: /metrics answered with status 503"),
        (None, "the last reading is 60 s old: /metrics has not answered since"),
    ],
)
def test_an_old_reading_is_said_with_the_reason(
    vllm: Metrics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str | None, sentence: str
) -> None:
    options = SimpleNamespace(action="watch", output=[tmp_path / "run"], force=False)
    folder = RunFolder(cast("Namespace", options), "serve")
    scrape = Scrape(folder.path, Endpoint("127.0.0.1", vllm.server_port), 1.0, OwnLines(steps=False), since_s=0.0)
    scrape.read_once(1.0)
    scrape.close()
    said: list[str] = []
    console = Console()
    monkeypatch.setattr(console, "note", said.append)
    watch = Watch(scrape, folder, 1.0, console, as_json=False)

    watch.warn()
    assert said == []

    assert scrape.last_s is not None
    scrape.last_s -= 60
    scrape.failure = failure
    watch.warn()
    assert said == [f"whystall: {sentence}"]


@pytest.mark.parametrize(
    "address",
    [
        "ftp://127.0.0.1:1",
        "http://user:secret@127.0.0.1:1",
        "user:secret@127.0.0.1:1",
        "http://",
        "http://127.0.0.1:none",
        "http://127.0.0.1:0",
        "http://127.0.0.1:1/metrics?token=secret",
        "http://[::1",
        "http://a/b c",
    ],
)
def test_an_address_that_is_none_is_refused(cli: Cli, tmp_path: Path, address: str) -> None:
    outcome = cli("serve", "watch", address, "-o", tmp_path / "run")

    assert outcome.code == 2
    assert outcome.err.startswith("whystall: the address is not http://HOST:PORT: it has ")
    assert "secret" not in outcome.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "words",
    [("--every", "0.1"), ("--report-every", "0"), ("--for", "-1"), ("--for", "soon"), ("another",)],
)
def test_options_that_make_no_sense_are_refused(cli: Cli, tmp_path: Path, words: tuple[str, ...]) -> None:
    outcome = cli("serve", "watch", "http://127.0.0.1:1", "-o", tmp_path / "run", *words)

    assert outcome.code == 2
    assert not (tmp_path / "run").exists()


def test_a_folder_with_a_run_is_not_overwritten(cli: Cli, vllm: Metrics, tmp_path: Path, end: End) -> None:
    end(vllm, after=1)
    assert cli("serve", "watch", vllm.url, "-o", tmp_path / "run").code == 0

    assert cli("serve", "watch", vllm.url, "-o", tmp_path / "run").code == 2
    assert cli("serve", "watch", vllm.url, "-o", tmp_path / "run", "-f").code == 0
