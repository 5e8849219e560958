"""A server that has ``/metrics`` alone, in this process: its counters stand still at first, and then have a load."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.serving.server import Engine


class Metrics(ThreadingHTTPServer):
    """Answers with the first text once, and with the second one from then on; ``status`` may change in between."""

    daemon_threads = True

    def __init__(self, texts: tuple[str, str], status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.texts = [text.encode() for text in texts]
        self.status = status
        self.asked: list[str] = []
        self._came = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def body(self) -> bytes:
        return self.texts[min(len(self.asked) - 1, 1)]

    def note(self, request: str) -> None:
        with self._came:
            self.asked.append(request)
            self._came.notify_all()

    def wait_for(self, requests: int) -> None:
        """Returns when that many requests have come."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.asked) >= requests, timeout=60)

    def handle_error(self, *_: object) -> None:
        """A client that leaves is no event."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Metrics

    def do_GET(self) -> None:
        self.server.note(f"{self.command} {self.path}")
        body = self.server.body
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Location", "http://127.0.0.1:9/")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def serving(server: Metrics) -> Iterator[Metrics]:
    """The server while it answers."""
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def texts(engine: Engine) -> tuple[str, str]:
    """``/metrics`` of vLLM before and after a load."""
    more = 'vllm:num_requests_running{engine="0",model_name="/secret/model"} 1.0\n'
    return engine.metrics(done=False) + more, engine.metrics() + more
