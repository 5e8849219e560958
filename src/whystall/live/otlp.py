"""Metrics sent to a collector of OpenTelemetry over HTTP, in the background: no caller waits for a collector.

Neither proxies nor redirects are followed: data goes to the named address, or nowhere.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from whystall.json_text import parse_json
from whystall.live.address import parse_address
from whystall.report.names import clean

SCHEME: Final = "otlp://"
TIMEOUT_S: Final = 3.0
_PORT: Final = 4318
_PATH: Final = "/v1/metrics"
_MOST_READ: Final = 1 << 16
_FAILED: Final = (OSError, http.client.HTTPException, ValueError)


class Collector:
    """A collector at ``otlp://HOST[:PORT][/PATH]``: takes one request at a time, and is tried again each time.

    ``note`` receives the first error, and the next one only after a success. Raises `UsageError` for an invalid
    address.
    """

    def __init__(self, address: str, note: Callable[[str], object], *, timeout_s: float = TIMEOUT_S) -> None:
        _, self._host, self._port, path = parse_address(address, {"otlp": _PORT}, f"{SCHEME}HOST:PORT")
        self._path = path if path.strip("/") else _PATH
        self._note = note
        self._timeout_s = timeout_s
        self._attempt: _Attempt | None = None
        self._unsent: bytes | None = None
        self._told = False

    def send(self, body: bytes) -> None:
        """Begins to send; while the last request waits for its answer, nothing is sent."""
        self._unsent = None if self._settled() else body
        if self._unsent is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
            self._attempt = _Attempt(connection, self._path, body)

    def close(self) -> None:
        """Waits for the answer to the last request, up to its time limit; sends the unsent rest."""
        self._wait()
        if self._unsent is not None:
            self.send(self._unsent)
            self._wait()

    def _wait(self) -> None:
        if self._attempt is not None:
            self._attempt.thread.join(self._timeout_s)
            self._settled(last=True)

    def _settled(self, *, last: bool = False) -> bool:
        """Whether no request is under way; one that takes too long is given up."""
        attempt = self._attempt
        if attempt is None:
            return True
        if attempt.thread.is_alive():
            if last or time.monotonic() - attempt.began_s > self._timeout_s:
                attempt.give_up()
                self._say(f"gave no answer within {self._timeout_s:g} s")
            return False
        self._attempt = None
        if attempt.failure is None:
            self._told = False
        else:
            self._say(attempt.failure)
        return True

    def _say(self, what: str) -> None:
        if not self._told:
            self._told = True
            self._note(f"whystall: the collector at {self._host}:{self._port} {what}; it is tried again with each look")


class _Attempt:
    """A request on a thread of its own; ``failure`` is its error, once the thread has ended."""

    def __init__(self, connection: http.client.HTTPConnection, path: str, body: bytes) -> None:
        self.failure: str | None = None
        self.began_s = time.monotonic()
        self._connection = connection
        self._socket: socket.socket | None = None  # an answer that ends with its connection takes it from there
        self.thread = threading.Thread(target=self._run, args=(path, body), name="whystall-otlp", daemon=True)
        self.thread.start()

    def give_up(self) -> None:
        """Ends the thread's wait; the thread ends soon after."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _run(self, path: str, body: bytes) -> None:
        try:
            self._connection.connect()
            self._socket = self._connection.sock
            self._connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = self._connection.getresponse()
            self.failure = _refused(answer.status, answer.read(_MOST_READ))
        except TimeoutError:
            self.failure = "gave no answer in time"
        except _FAILED as error:
            told = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self.failure = f"cannot be reached ({clean(told or type(error).__name__, 200)})"
        finally:
            self._connection.close()


def _refused(status: int, body: bytes) -> str | None:
    """The error in an answer; ``None`` where all was accepted."""
    try:
        said: Any = parse_json(body)
    except ValueError:
        said = None
    said = said if isinstance(said, dict) else {}
    partial = said.get("partialSuccess")
    partial = partial if isinstance(partial, dict) else {}
    told = str(said.get("message") or partial.get("errorMessage") or "")
    reason = f" ({clean(told, 200)})" if told else ""
    if status not in range(200, 300):
        return f"answered with status {status}{reason}"
    refused = str(partial.get("rejectedDataPoints", 0))
    return f"refused {clean(refused, 20)} values{reason}" if refused != "0" else None
