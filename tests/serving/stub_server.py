"""A stand-in for ``vllm serve``: its lines on both streams, its step log, its ``/metrics``, its way to end.

``STUB`` in the environment has a misbehaviour, ``STUB_HOME`` the folder for what it was started with.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MODE = os.environ.get("STUB", "")
HOME = Path(os.environ.get("STUB_HOME", ""))
STEPS_OF_A_REQUEST = 4
METRICS = """# HELP vllm:num_requests_running requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="secret-model"}} 1.0
vllm:num_requests_waiting{{engine="0",model_name="secret-model"}} 2.0
vllm:num_preemptions_total{{engine="0"}} 0.0
vllm:request_success_total{{engine="0",finished_reason="length"}} {count}.0
vllm:prompt_tokens_total{{engine="0"}} {prompt}.0
vllm:generation_tokens_total{{engine="0"}} {output}.0
vllm:e2e_request_latency_seconds_count{{engine="0"}} {count}.0
vllm:e2e_request_latency_seconds_sum{{engine="0"}} {count}.0
vllm:request_queue_time_seconds_count{{engine="0"}} {count}.0
vllm:request_queue_time_seconds_sum{{engine="0"}} {queue}
vllm:request_prefill_time_seconds_count{{engine="0"}} {count}.0
vllm:request_prefill_time_seconds_sum{{engine="0"}} 0.0
vllm:request_decode_time_seconds_count{{engine="0"}} {count}.0
vllm:request_decode_time_seconds_sum{{engine="0"}} {decode}
vllm:cache_config_info{{block_size="32",num_gpu_blocks="100",enable_prefix_caching="False"}} 1.0
process_start_time_seconds {started}
"""


def say(text: str, *, end: str = "\n") -> None:
    sys.stdout.write(text + end)
    sys.stdout.flush()


class Server(ThreadingHTTPServer):
    """The state of the server."""

    daemon_threads = True

    def __init__(self, arguments: list[str]) -> None:
        port = int(arguments[arguments.index("--port") + 1]) if "--port" in arguments else 8000
        super().__init__(("127.0.0.1", port), Handler)
        self.logs_steps = "--enable-logging-iteration-details" in arguments
        self.started = time.time() if MODE != "foreign" else 1.0
        self.requests = 0
        self.steps = 0
        self.code = 0
        self.lock = threading.Lock()

    def serve(self) -> None:
        with self.lock:
            self.requests += 1
            for number in range(STEPS_OF_A_REQUEST):
                self.steps += 1
                self.step(first=number == 0)
        say('INFO:     127.0.0.1:0 - "POST /v1/completions HTTP/1.1" 200 OK')

    def step(self, *, first: bool) -> None:
        if self.logs_steps:
            context, tokens, running = (1, 60, 0) if first else (0, 0, 1)
            say(
                f"(EngineCore pid=2) INFO 11-28 10:00:00 [core.py:1] Engine 000: Iteration({self.steps}): {context} "
                f"context requests, {tokens} context tokens, {running} generation requests, {running} generation "
                "tokens, iteration elapsed time: 5.00 ms, CPU KV cache usage: 0.1%"
            )

    def metrics(self) -> str:
        count = self.requests
        sums = {"prompt": 60 * count, "output": 4 * count, "queue": 0.9 * count, "decode": 0.1 * count}
        return METRICS.format(count=count, started=self.started, **sums)

    def handle_error(self, *_: object) -> None:
        """A client that leaves is no event."""


class Handler(BaseHTTPRequestHandler):
    """The answers."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        if MODE == "hang":
            time.sleep(60)
        if MODE == "redirect":
            self.answer(302, b"", {"Location": "http://127.0.0.1:9/metrics"})
            return
        if MODE == "huge":
            self.send_response(200)
            self.send_header("Content-Length", str(1 << 40))
            self.end_headers()
            while True:
                self.wfile.write(b"# junk\n" * 10_000)
        self.answer(200, self.server.metrics().encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/stop":
            self.server.code = 3
            self.answer(200, b"")
            threading.Thread(target=self.server.shutdown).start()
            return
        self.server.serve()
        self.answer(200, b"{}")

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        if self.command == "GET":
            client, port = self.client_address[:2]
            say(f'INFO:     {client}:{port} - "GET {self.path} HTTP/1.1" {status} OK')
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Lines are those of `say`."""


def main() -> int:
    arguments = sys.argv[1:]
    (HOME / "started.json").write_text(json.dumps({"arguments": arguments, "environment": dict(os.environ)}))
    say("(APIServer pid=1) INFO 11-28 10:00:00 [utils.py:1] non-default args: {'max_num_seqs': 1, 'api_key': 'secret'}")
    say(f"terminal: {sys.stdout.isatty()} {sys.stderr.isatty()} {sys.stdin.isatty()}")
    say("loading  10%\rloading 100%", end="")
    sys.stderr.write("Triton is installed\n\n")
    say("\r\ndone\x1b[32m colour\x1b[0m \xe9")
    if MODE == "fail":
        sys.stderr.write("ValueError: no such model\n")
        return 7
    server = Server(arguments)

    def stop(number: int, _frame: object) -> None:
        say(f"stopping by signal {number}")
        threading.Thread(target=server.shutdown).start()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    say(
        f"(APIServer pid=1) INFO 11-28 10:00:01 [entry.py:140] Starting vLLM server on http://127.0.0.1:{server.server_port}"
    )
    (HOME / "ready").touch()
    server.serve_forever(0.02)
    say("(APIServer pid=1) shut down")
    return server.code


if __name__ == "__main__":
    sys.exit(main())
