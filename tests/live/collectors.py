"""A collector of OpenTelemetry on loopback, for tests: keeps what it is sent, answers as it is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, ResourceMetrics


@dataclass
class Received:
    """What came, and what is answered; while ``hold`` is not set no answer is given."""

    port: int = 0
    status: int = 200
    answer: bytes = b"{}"
    hold: threading.Event = field(default_factory=threading.Event)
    paths: list[str] = field(default_factory=list)
    kinds: list[str | None] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"otlp://127.0.0.1:{self.port}"

    def resource(self) -> ResourceMetrics:
        """The last request, read by the schema of OpenTelemetry: an unknown field is an error."""
        request = ExportMetricsServiceRequest()
        Parse(self.bodies[-1], request)
        resource: ResourceMetrics = request.resource_metrics[0]
        return resource

    def metrics(self) -> dict[str, Metric]:
        (scope,) = self.resource().scope_metrics
        return {metric.name: metric for metric in scope.metrics}


@contextmanager
def collector(*, holds: bool = False) -> Iterator[Received]:
    received = Received()
    if not holds:
        received.hold.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.paths.append(self.path)
            received.kinds.append(self.headers["Content-Type"])
            received.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            received.hold.wait(60)
            self.send_response(received.status)
            self.send_header("Content-Length", str(len(received.answer)))
            self.end_headers()
            self.wfile.write(received.answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Says nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that gave up is no error."""

    server = Server(("127.0.0.1", 0), Handler)
    received.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield received
    finally:
        received.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()
