"""Receives a server's OpenTelemetry spans on loopback (OTLP over HTTP, protobuf) and keeps the times of requests.

The message is parsed as far as the fields below: a span's name, its start, and the attributes that the reader of spans
uses. Everything else in it is dropped, and nothing of a prompt is in those.
"""

from __future__ import annotations

import contextlib
import hmac
import http.server
import os
import secrets
import struct
import threading
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Final

import msgspec

from whystall.serving.readers.otlp import ATTRIBUTES, SPAN

__all__ = ["SpanReceiver", "may_be_sent", "spans_of"]

_HOST: Final = "127.0.0.1"
_PATH: Final = "/v1/traces"
_HEADER: Final = "x-whystall-token"
_LARGEST: Final = 32 << 20
_MOST_BYTES: Final = 256 << 20  # half a million spans, the most that are read
_TIMEOUT_S: Final = 5.0
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def may_be_sent(environment: Mapping[str, str]) -> bool:
    """Whether a server may send its spans here: the user's own settings of OpenTelemetry or of a proxy go first.

    >>> may_be_sent({"OTEL_SDK_DISABLED": "true"}), may_be_sent({})
    (False, True)
    """
    own = any(name.startswith("OTEL_") for name in environment)
    proxied = any(environment.get(name) for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"))
    return not own and not proxied


class _Quiet(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Nothing: a connection that breaks off is the server's end, and the terminal is the server's."""


class SpanReceiver:
    """A receiver that appends to ``path`` what comes with its token. Raises `OSError` where no port is free."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._kept = 0
        self._token = secrets.token_urlsafe(24)
        self.spans = 0
        self.damage: str | None = None
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = _TIMEOUT_S

            def do_POST(self) -> None:
                if not hmac.compare_digest(self.headers.get(_HEADER, "").encode(), receiver._token.encode()):
                    self.send_error(HTTPStatus.FORBIDDEN)
                    return
                length = self.headers.get("Content-Length", "")
                if self.path != _PATH or not length.isdecimal() or int(length) > _LARGEST:
                    self.send_error(HTTPStatus.BAD_REQUEST)
                    return
                receiver._take(self.rfile.read(int(length)))
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                """Nothing: the terminal is the server's."""

        self._server = _Quiet((_HOST, 0), Handler)

    @property
    def endpoint(self) -> str:
        """The address for ``--otlp-traces-endpoint``."""
        return f"http://{_HOST}:{self._server.server_address[1]}{_PATH}"

    @property
    def variables(self) -> dict[str, str]:
        """Variables that make a server send its spans here, with the token: other users can read a command line."""
        return {
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_TRACES_HEADERS": f"{_HEADER}={self._token}",
            "OTEL_BSP_SCHEDULE_DELAY": "1000",
        }

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Receives while the command runs."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="whystall-spans", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._server.shutdown()
            thread.join()

    def close(self) -> None:
        """Gives the port back."""
        self._server.server_close()

    def _take(self, body: bytes) -> None:
        try:
            found = list(spans_of(body))
        except ValueError:
            return
        text = b"".join(msgspec.json.encode(span) + b"\n" for span in found)
        with self._lock:
            if not text or self.damage is not None:
                return
            if self._kept + len(text) > _MOST_BYTES:
                self.damage = f"{self._path.name} is cut at {_MOST_BYTES >> 20} MiB"
                return
            try:
                with open(self._path, "ab", buffering=0, opener=_private) as file:
                    file.write(text)
            except OSError as error:
                self.damage = f"{self._path.name} could not be written ({error.strerror or error})"
                return
            self._kept += len(text)
            self.spans += len(found)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)  # ids of requests are the users' own


def spans_of(body: bytes) -> Iterator[dict[str, object]]:
    """The spans of requests in an export message, as OTLP's JSON has them. Raises `ValueError` for a damaged one.

    Field numbers: `opentelemetry/proto/trace/v1/trace.proto` and `common/v1/common.proto`.
    """
    for resource in _messages(body, 1):
        for scope in _messages(resource, 2):
            for span in _messages(scope, 2):
                fields = list(_fields(span))
                name = next((value for number, value in fields if number == 5), b"")
                if name != SPAN.encode():
                    continue
                start = next((value for number, value in fields if number == 7 and isinstance(value, int)), 0)
                pairs = [_attribute(value) for number, value in fields if number == 9 and isinstance(value, bytes)]
                yield {
                    "traceId": "",
                    "name": SPAN,
                    "startTimeUnixNano": str(start),
                    "attributes": [pair for pair in pairs if pair is not None],
                }


def _attribute(message: bytes) -> dict[str, object] | None:
    """A wanted attribute: its key, and its value as text, whole number or float."""
    found = dict(_fields(message))
    key, value = found.get(1), found.get(2)
    if not isinstance(key, bytes) or not isinstance(value, bytes):
        return None
    name = key.decode("utf-8", "replace")
    if name not in ATTRIBUTES:
        return None
    for number, content in _fields(value):
        if number == 1 and isinstance(content, bytes):
            return {"key": name, "value": {"stringValue": content.decode("utf-8", "replace")[:200]}}
        if number == 3 and isinstance(content, int):
            return {"key": name, "value": {"intValue": str(content)}}
        if number == 4 and isinstance(content, int):
            return {"key": name, "value": {"doubleValue": struct.unpack("<d", content.to_bytes(8, "little"))[0]}}
    return None


def _messages(body: bytes, number: int) -> Iterator[bytes]:
    for found, value in _fields(body):
        if found == number and isinstance(value, bytes):
            yield value


def _fields(body: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of a message's fields, by protobuf's wire format. Raises `ValueError` for a damaged one."""
    place = 0
    while place < len(body):
        key, place = _varint(body, place)
        kind = key & 7
        if kind == _VARINT:
            value, place = _varint(body, place)
            yield key >> 3, value
            continue
        size = 8 if kind == _FIXED64 else 4
        if kind == _BYTES:
            size, place = _varint(body, place)
        elif kind not in {_FIXED64, _FIXED32}:
            raise ValueError("no field of a known kind")
        content, place = body[place : place + size], place + size
        if place > len(body):
            raise ValueError("a field that was cut")
        yield key >> 3, content if kind == _BYTES else int.from_bytes(content, "little")


def _varint(body: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(body) and shift < 64:
        byte = body[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
    raise ValueError("a number that was cut")
