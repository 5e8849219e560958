"""``whystall serve run`` with a stand-in for vLLM: its output, status and signals as alone, and what is recorded."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.serving.stub_server import STEPS_OF_A_REQUEST

STUB = Path(__file__).parents[1] / "serving" / "stub_server.py"
STEPS = "--enable-logging-iteration-details"
ENDPOINT = "--otlp-traces-endpoint"
WAIT_S = 60.0


@dataclass
class Home:
    """A folder with a `vllm` of its own on the PATH, whose package declares ``flags``."""

    path: Path
    port: int
    mode: str = ""
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def install(self, flags: Sequence[str]) -> None:
        package = self.path / "site" / "vllm"
        (package / "engine").mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text("raise RuntimeError('whystall must not import it')")
        (package / "engine" / "arg_utils.py").write_text("\n".join(f'group.add_argument("{flag}")' for flag in flags))
        script = self.path / "bin" / "vllm"
        script.parent.mkdir(exist_ok=True)
        script.write_text(f"#!{sys.executable}\nimport runpy\nrunpy.run_path({str(STUB)!r}, run_name='__main__')\n")
        script.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
        path = f"{self.path / 'bin'}{os.pathsep}{kept['PATH']}"
        return kept | {
            "PATH": path,
            "PYTHONPATH": os.pathsep.join([str(self.path / "site"), str(STUB.parents[2])]),
            "STUB": self.mode,
            "STUB_HOME": str(self.path),
        }

    @property
    def words(self) -> list[str]:
        return ["vllm", "serve", "model", "--port", str(self.port)]

    def recorded(self, *options: str, words: Sequence[str] | None = None) -> list[str]:
        own = [sys.executable, "-m", "whystall", "serve", "run", "-o", str(self.run), "--every", "0.34", *options]
        return [*own, "--", *(words or self.words)]

    @property
    def run(self) -> Path:
        return self.path / "run"

    def start(self, words: Sequence[str], **streams: int) -> subprocess.Popen[bytes]:
        (self.path / "ready").unlink(missing_ok=True)
        wanted = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL} | streams
        process = subprocess.Popen(
            words,
            cwd=self.path,
            env=self.environment,
            stdin=wanted["stdin"],
            stdout=wanted["stdout"],
            stderr=wanted["stderr"],
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def until(self, there: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + WAIT_S
        while not there():
            assert process.poll() is None, "it ended before"
            assert time.monotonic() < end, "it never came"
            time.sleep(0.02)

    def ready(self, process: subprocess.Popen[bytes]) -> None:
        self.until((self.path / "ready").exists, process)

    def read_once(self, process: subprocess.Popen[bytes]) -> None:
        """Until the first reading of the metrics is there."""
        self.until((self.run / "serve-metrics-before.txt").exists, process)

    def post(self, path: str = "/v1/completions") -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("POST", path, b"{}")
        connection.getresponse().read()
        connection.close()

    def session(self, words: Sequence[str], requests: int = 8) -> tuple[int, bytes, bytes]:
        """Starts the server, sends requests, and lets it end with code 3."""
        process = self.start(words)
        self.ready(process)
        if "whystall" in words:
            self.read_once(process)
        for _ in range(requests):
            self.post()
        if "whystall" in words:
            time.sleep(0.5)  # one more reading
        self.post("/stop")
        out, err = process.communicate(timeout=WAIT_S)
        return process.returncode, out, err

    @property
    def arguments(self) -> list[str]:
        found = json.loads((self.path / "started.json").read_text())["arguments"]
        assert isinstance(found, list)
        return found

    @property
    def seen(self) -> dict[str, str]:
        found = json.loads((self.path / "started.json").read_text())["environment"]
        assert isinstance(found, dict)
        return found


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    made = Home(tmp_path, port)
    made.install([STEPS, ENDPOINT])
    yield made
    for process in made.started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # a server whose launcher has ended
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def test_output_and_status_are_those_of_the_server_alone(home: Home) -> None:
    alone = home.session(home.words)
    recorded = home.session(home.recorded("-q"))

    assert recorded == alone
    assert alone[0] == 3
    log = (home.run / "serve-log.txt").read_bytes()
    assert log.count(b"Iteration(") == 8 * STEPS_OF_A_REQUEST
    assert b"Triton is installed" in log
    assert b"GET /metrics" in log
    assert oct((home.run / "serve-log.txt").stat().st_mode)[-3:] == "600"


def test_the_report_follows_on_stderr_and_has_nothing_secret(home: Home) -> None:
    _, out, err = home.session(home.recorded())

    said = err.decode()
    assert b"whystall" not in out
    assert f"records into {home.run}, with {STEPS}" in said
    assert "requests wait 900 ms in the queue because --max-num-seqs is 1" in said
    assert "8 requests by the server's count" in said
    assert f"next: whystall serve report {home.run} RESULT" in said
    assert "secret" not in said
    again = subprocess.run(
        [sys.executable, "-m", "whystall", "serve", "report", home.run], capture_output=True, check=True
    )
    assert again.stdout.decode().splitlines()[0] in said


def test_the_users_words_come_first_and_unchanged(home: Home) -> None:
    home.session(home.recorded("-q"))
    assert home.arguments[:4] == home.words[1:]
    assert home.arguments[4] == STEPS


@pytest.mark.parametrize(
    "words",
    [[STEPS], ["--enable_logging_iteration_details"], ["--no-enable-logging-iteration-details"]],
)
def test_a_flag_of_the_users_own_stays(home: Home, words: list[str]) -> None:
    home.session(home.recorded("-q", words=[*home.words, *words]), 1)
    assert STEPS not in home.arguments[4 + len(words) :]


def test_steps_that_the_user_asked_for_are_shown(home: Home) -> None:
    _, out, _ = home.session(home.recorded("-q", words=[*home.words, STEPS]), 2)
    assert out.count(b"Iteration(") == 2 * STEPS_OF_A_REQUEST


def test_a_version_without_the_flag_is_left_as_it_is(home: Home) -> None:
    home.install(["--port"])
    _, _, err = home.session(home.recorded(), 2)
    assert home.arguments == home.words[1:]
    assert b"is not added, since this version of vLLM has no such flag" in err


def test_no_flags_leaves_the_command_and_its_environment(home: Home) -> None:
    home.session(home.recorded("-q", "--no-flags"), 2)
    assert home.arguments == home.words[1:]
    assert not [name for name in home.seen if name.startswith("OTEL_")]


def test_a_command_within_a_shell_gets_no_flag_and_is_read_where_it_says(home: Home) -> None:
    words = ["sh", "-c", " ".join(home.words)]
    _, _, err = home.session(home.recorded(words=words), 2)
    assert home.arguments == home.words[1:]
    assert b"is not added, since the command is no `vllm serve`: add it" in err
    assert b"2 requests by the server's count" in err


def test_metrics_are_kept_before_after_and_as_a_series(home: Home) -> None:
    home.session(home.recorded("-q"), 3)
    before = (home.run / "serve-metrics-before.txt").read_text()
    after = (home.run / "serve-metrics-after.txt").read_text()
    assert 'request_success_total{engine="0",finished_reason="length"} 0.0' in before
    assert 'request_success_total{engine="0",finished_reason="length"} 3.0' in after
    first, *rest = (home.run / "serve-metrics.jsonl").read_text().splitlines()
    assert json.loads(first) == {"schema": "whystall.serving-series/1"}
    assert json.loads(rest[-1])["finished"] == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_once_as_alone(home: Home, number: signal.Signals) -> None:
    process = home.start(home.recorded())
    home.ready(process)
    home.read_once(process)
    home.post()
    os.killpg(process.pid, number)  # as Ctrl-C in a terminal does
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert out.count(f"stopping by signal {int(number)}".encode()) == 1
    assert b"next: whystall serve report" in err


def test_a_signal_to_whystall_alone_reaches_the_server(home: Home) -> None:
    process = home.start(home.recorded("-q"))
    home.ready(process)
    home.read_once(process)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=WAIT_S)
    assert (process.returncode, b"stopping by signal 15" in out) == (0, True)


def test_a_killed_server_leaves_a_folder_that_can_be_read(home: Home) -> None:
    process = home.start(home.recorded())
    home.ready(process)
    home.read_once(process)
    home.post()
    os.kill(_child(process.pid), signal.SIGKILL)
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == -signal.SIGKILL
    assert b"next: whystall serve report" in err
    assert json.loads((home.run / "run.json").read_text())["exit_code"] == 128 + signal.SIGKILL


def test_whystall_killed_leaves_a_folder_that_can_be_read(home: Home) -> None:
    process = home.start(home.recorded("-q"))
    home.ready(process)
    home.read_once(process)
    home.post()
    log = home.run / "serve-log.txt"
    home.until(lambda: log.read_bytes().count(b"Iteration(") == STEPS_OF_A_REQUEST, process)
    server = _child(process.pid)
    process.kill()
    process.wait()
    os.kill(server, signal.SIGKILL)
    read = subprocess.run(
        [sys.executable, "-m", "whystall", "serve", "report", home.run], capture_output=True, check=False
    )
    assert read.returncode == 0
    assert b"vLLM server log" in read.stdout


def test_a_server_that_does_not_start_has_its_output_its_status_and_one_sentence(home: Home) -> None:
    home.mode = "fail"
    alone = subprocess.run(home.words, cwd=home.path, env=home.environment, capture_output=True, check=False)
    words = home.recorded()
    recorded = subprocess.run(words, cwd=home.path, env=home.environment, capture_output=True, check=False)
    assert (recorded.returncode, recorded.stdout) == (7, alone.stdout)
    own = [line for line in recorded.stderr.splitlines() if line.startswith(b"whystall")]
    assert len(own) == 1
    assert recorded.stderr.replace(own[0] + b"\n", b"") == alone.stderr


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        ("hang", "/metrics did not answer in 2 s"),
        ("huge", "/metrics has more than 16 MiB"),
        ("redirect", "/metrics answered with status 302"),
        ("foreign", "/metrics belongs to another server, which was there before"),
    ],
)
def test_metrics_that_cannot_be_read_are_said_and_harm_nothing(home: Home, mode: str, sentence: str) -> None:
    home.mode = mode
    process = home.start(home.recorded())
    home.ready(process)
    for _ in range(8):
        home.post()
    time.sleep(3.5 if mode == "hang" else 1.5)
    os.kill(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert sentence in err.decode()
    assert "vLLM server log" in err.decode()
    assert not (home.run / "serve-metrics-before.txt").exists()


@pytest.mark.parametrize("kind", ["file", "locked", "earlier"])
def test_a_folder_that_cannot_be_used_stops_before_the_server(home: Home, kind: str) -> None:
    if kind == "file":
        home.run.write_text("mine")
    elif kind == "earlier":
        home.run.mkdir()
        (home.run / "serve-log.txt").write_text("mine")
    else:
        home.run.symlink_to("/proc/none")
    done = subprocess.run(home.recorded(), cwd=home.path, env=home.environment, capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(b"whystall: ")
    assert not (home.path / "started.json").exists()


def test_force_replaces_an_earlier_run(home: Home) -> None:
    home.session(home.recorded("-q"), 2)
    refused = subprocess.run(home.recorded(), cwd=home.path, env=home.environment, capture_output=True, check=False)
    assert (refused.returncode, b"holds a run already" in refused.stderr) == (2, True)
    assert home.session(home.recorded("-q", "--force"), 1)[0] == 3
    assert (home.run / "serve-log.txt").read_bytes().count(b"Iteration(") == STEPS_OF_A_REQUEST


def test_a_full_disk_ends_the_copy_and_not_the_server(home: Home) -> None:
    """A limit on the size of files stands for the disk: it gives an error at the same place."""
    limit = "import resource, sys, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); "
    begin = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); sys.argv = sys.argv[1:]; "
    words = home.recorded("-q")
    script = limit + begin + "runpy.run_module('whystall', run_name='__main__')"
    process = home.start([sys.executable, "-c", script, "whystall", *words[3:]])
    home.ready(process)
    for _ in range(40):
        home.post()
    home.post("/stop")
    out, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 3
    assert out.endswith(b"(APIServer pid=1) shut down\n")
    assert (home.run / "serve-log.txt").stat().st_size <= 4096


@pytest.mark.parametrize("recorded", [False, True])
def test_a_reader_that_leaves_ends_the_servers_output_as_alone(home: Home, recorded: bool) -> None:
    read, write = os.pipe()
    process = home.start(home.recorded("-q") if recorded else home.words, stdout=write)
    os.close(write)
    home.ready(process)
    os.close(read)
    refused = 0
    for _ in range(20):  # the stub's request fails once its line cannot be written
        try:
            home.post()
        except http.client.RemoteDisconnected:
            refused += 1
        time.sleep(0.05)
    assert refused >= 18
    process.send_signal(signal.SIGTERM)
    server = _child(process.pid) if recorded else process.pid
    os.kill(server, signal.SIGKILL)
    assert process.wait(WAIT_S) == -signal.SIGKILL


@pytest.mark.parametrize("errors", ["together", "apart"])
def test_a_terminal_stays_a_terminal(home: Home, errors: str) -> None:
    alone = _at_a_terminal(home, home.words, errors)
    recorded = _at_a_terminal(home, home.recorded("-q"), errors)
    assert recorded == alone
    assert b"terminal: True" in alone[0]


def test_both_streams_in_one_file_keep_their_order(home: Home) -> None:
    process = home.start(home.recorded("-q"), stderr=subprocess.STDOUT)
    home.ready(process)
    home.read_once(process)
    home.post("/stop")
    out, _ = process.communicate(timeout=WAIT_S)
    assert re.search(rb"loading 100%Triton is installed\n\n\r\ndone", out)


def test_options_of_the_report_are_refused(home: Home) -> None:
    for options in (["--json"], ["--every", "0.1"], ["--every", "x"], ["-o", "b"]):
        words = home.recorded(*options)
        done = subprocess.run(words, cwd=home.path, env=home.environment, capture_output=True, check=False)
        assert done.returncode == 2
    assert not (home.path / "started.json").exists()


def _child(parent: int) -> int:
    """The server among the launcher's children."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            words = (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == parent and b"serve" in words:
            return int(path.parent.name)
    raise AssertionError("no server")


def _at_a_terminal(home: Home, words: Sequence[str], errors: str) -> tuple[bytes, bytes]:
    """The output at a terminal of 71 columns, which shows both streams or the first one."""
    ours, theirs = pty.openpty()
    apart = errors == "apart"
    process = home.start(words, stdout=theirs, stderr=subprocess.PIPE if apart else theirs)
    os.close(theirs)
    home.ready(process)
    if "whystall" in words:
        home.read_once(process)
    home.post()
    home.post("/stop")
    seen = b""
    while True:
        ready, _, _ = select.select([ours], [], [], WAIT_S)
        assert ready
        try:
            piece = os.read(ours, 1 << 16)
        except OSError:  # its end
            break
        if not piece:
            break
        seen += piece
    os.close(ours)
    others = process.stderr.read() if process.stderr is not None else b""
    assert process.wait(WAIT_S) == 3
    return seen, others
