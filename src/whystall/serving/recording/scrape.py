"""Reads ``/metrics`` of a server again and again: the first and the last reading, and a series of counts.

Bounded in time and size, without redirects or proxies. A failure is remembered and tried again, more and more rarely:
the server and its user go first.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from whystall.disk.writing import Over, write
from whystall.run_folder.layout import METRICS_AFTER, METRICS_BEFORE, METRICS_SERIES
from whystall.serving.readers.metrics_series import HEAD, Counts
from whystall.serving.readers.prometheus import metrics_of
from whystall.serving.readers.sglang_metrics import sglang_metrics_of
from whystall.serving.recording.own_lines import OwnLines

__all__ = ["FASTEST_S", "Endpoint", "Scrape", "on_loopback"]

FASTEST_S: Final = 1 / 3
_HOST: Final = "127.0.0.1"
_TIMEOUT_S: Final = 2.0
_LARGEST: Final = 16 << 20
_RAREST_S: Final = 30.0
_SAVE_EVERY_S: Final = 10.0
_MOST_SERIES: Final = 64 << 20
_EARLIER_S: Final = 2.0  # a start time has seconds, and the kernel's clock of starts drifts a little
_FAILED: Final = (OSError, http.client.HTTPException, ValueError)


class _NoReadingError(Exception):
    """An answer that is no reading; the text ends a sentence."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where ``/metrics`` is."""

    host: str
    port: int
    path: str = "/metrics"
    tls: bool = False

    def connection(self) -> http.client.HTTPConnection:
        """A connection, not yet open."""
        if self.tls:
            return http.client.HTTPSConnection(self.host, self.port, timeout=_TIMEOUT_S)
        return http.client.HTTPConnection(self.host, self.port, timeout=_TIMEOUT_S)


def on_loopback(port: int | None) -> Endpoint | None:
    """The endpoint of a server on this machine."""
    return None if port is None else Endpoint(_HOST, port)


class Scrape:
    """Readings into ``folder`` every ``every_s`` seconds; ``since_s`` is the start of the server (seconds since 1970).

    ``endpoint`` is that of the command; the port that the server announces goes before it. ``last_s`` is when the last
    reading came, by the monotonic clock, and ``failure`` why none has come since.
    """

    def __init__(self, folder: Path, endpoint: Endpoint | None, every_s: float, own: OwnLines, since_s: float) -> None:
        self._folder = folder
        self._endpoint = endpoint
        self._every_s = max(every_s, FASTEST_S)
        self._own = own
        self._since_s = since_s
        self._ended = threading.Event()
        self._connection: http.client.HTTPConnection | None = None
        self._last: bytes | None = None
        self._saved_s = 0.0
        self._series_bytes = 0
        self._counts: Counts | None = None
        self.readings = 0
        self.last_s: float | None = None
        self.failure: str | None = None
        self.damage: str | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Reads on a thread of its own while the command runs."""
        thread = threading.Thread(target=self._run, name="whystall-metrics", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join(_TIMEOUT_S + 1.0)
            self._save_last()

    def _run(self) -> None:
        pause = self._every_s
        while True:
            pause = self.read_once(pause)
            if self._ended.wait(pause):
                break
        self.close()

    def read_once(self, pause: float) -> float:
        """Takes a reading, and returns the time until the next one: longer than ``pause`` after a failure."""
        where = self._where()
        if where is None:
            return pause
        try:
            self._take(self._read(where))
        except _NoReadingError as error:
            self.failure = str(error)
        except TimeoutError:
            self.failure = f"did not answer in {_TIMEOUT_S:.0f} s"
        except ConnectionRefusedError:  # before it listens, and when it stops
            self.failure = "is gone: nothing listens at this address" if self.readings else self.failure
            self.close()
            return pause
        except socket.gaierror:
            self.failure = "is on a host whose name is not known here"
        except ssl.SSLError as error:
            self.failure = f"has no TLS that is trusted here ({error.reason or 'unknown'})"
        except _FAILED:
            self.failure = self.failure or "broke off its answer"
        else:
            self.failure = None
            return self._every_s
        self.close()
        return min(2 * pause, _RAREST_S)

    def _where(self) -> Endpoint | None:
        return on_loopback(self._own.announced_port) or self._endpoint

    def _read(self, where: Endpoint) -> bytes:
        """One reading. Raises `_NoReadingError`, or one of ``_FAILED``."""
        if self._connection is None:
            connection = where.connection()
            connection.connect()
            self._connection = connection
            self._own.scrape_from(connection.sock.getsockname()[1])
        deadline = time.monotonic() + _TIMEOUT_S
        self._connection.request("GET", where.path)
        answer = self._connection.getresponse()
        if answer.status != http.client.OK:
            raise _NoReadingError(f"answered with status {answer.status}")
        pieces, size = [], 0
        while piece := answer.read1(1 << 16):
            pieces.append(piece)
            size += len(piece)
            if size > _LARGEST:
                raise _NoReadingError(f"has more than {_LARGEST >> 20} MiB")
            if time.monotonic() > deadline:
                raise TimeoutError
        answer.close()  # or the connection takes no other request
        return b"".join(pieces)

    def _take(self, text: bytes) -> None:
        read = sglang_metrics_of if b"sglang:" in text else metrics_of
        metrics = read(text.split(b"\n"))
        if "num_requests_running" not in metrics.values:
            raise _NoReadingError("has no series of vLLM's or SGLang's")
        if metrics.created_s is not None and metrics.created_s < self._since_s - _EARLIER_S:
            raise _NoReadingError("belongs to another server, which was there before")
        first = self._last is None
        self._last = text
        self.readings += 1
        self.last_s = time.monotonic()
        if first:
            self._save(METRICS_BEFORE, text)
        self._append(Counts.of(time.time(), metrics))
        if time.monotonic() - self._saved_s > _SAVE_EVERY_S:
            self._save_last()

    def save(self) -> None:
        """Writes the last reading now."""
        self._save_last()

    def _save_last(self) -> None:
        if self._last is not None:
            self._save(METRICS_AFTER, self._last)
            self._saved_s = time.monotonic()

    def _save(self, name: str, text: bytes) -> None:
        try:
            write(self._folder / name, lambda stream: stream.write(text), over=Over.OUR_OWN)
        except OSError as error:
            self.damage = f"{name} could not be written ({error.strerror or error})"

    def _append(self, counts: Counts) -> None:
        """Adds a line to the series, unless nothing has changed since the last one."""
        if self._counts is not None and counts.same(self._counts):
            return
        self._counts = counts
        line = (b"" if self._series_bytes else HEAD + b"\n") + msgspec.json.encode(counts) + b"\n"
        if self._series_bytes + len(line) > _MOST_SERIES:
            self.damage = f"{METRICS_SERIES} is cut at {_MOST_SERIES >> 20} MiB"
            return
        self._series_bytes += len(line)
        try:
            with (self._folder / METRICS_SERIES).open("ab", buffering=0) as file:
                file.write(line)
        except OSError as error:
            self.damage = f"{METRICS_SERIES} could not be written ({error.strerror or error})"

    def close(self) -> None:
        """Closes the connection; another reading opens one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            if connection.sock is not None:
                with contextlib.suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)
            connection.close()
