"""What is sent to a collector, and that one that is not there, refuses or hangs disturbs nothing."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import suppress

import pytest
from tests.live.collectors import collector

from whystall.errors import UsageError
from whystall.live.otlp import Collector


def test_a_request_goes_to_the_path_of_the_protocol_as_json() -> None:
    notes: list[str] = []
    with collector() as received:
        sender = Collector(received.address, notes.append)
        sender.send(b"{}")
        sender.close()
    assert (received.paths, received.kinds, received.bodies) == (["/v1/metrics"], ["application/json"], [b"{}"])
    assert notes == []


def test_another_path_may_be_named() -> None:
    with collector() as received:
        sender = Collector(f"{received.address}/api/v1/otlp/v1/metrics", pytest.fail)
        sender.send(b"{}")
        sender.close()
    assert received.paths == ["/api/v1/otlp/v1/metrics"]


def test_what_goes_wrong_is_said_once_until_it_went_right() -> None:
    notes: list[str] = []
    with collector() as received:
        sender = Collector(received.address, notes.append)
        for status in (503, 503, 200, 404):
            received.status, received.answer = status, b'{"message": "come\\u001b[31m back"}'
            sender.send(b"{}")
            sender.close()
    assert len(received.bodies) == 4  # each is tried
    assert [note.partition(" answered ")[2] for note in notes] == [
        "with status 503 (come\\x1b[31m back); it is tried again with each look",
        "with status 404 (come\\x1b[31m back); it is tried again with each look",
    ]


def test_values_that_are_refused_are_told() -> None:
    notes: list[str] = []
    with collector() as received:
        refused = {"rejectedDataPoints": "3", "errorMessage": "too many series"}
        received.answer = json.dumps({"partialSuccess": refused}).encode()
        sender = Collector(received.address, notes.append)
        sender.send(b"{}")
        sender.close()
    assert "refused 3 values (too many series)" in notes[0]


def test_a_collector_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    notes: list[str] = []
    sender = Collector(f"otlp://127.0.0.1:{port}", notes.append)
    for _ in range(3):
        sender.send(b"{}")
        sender.close()
    assert len(notes) == 1
    assert f"the collector at 127.0.0.1:{port} cannot be reached (Connection refused)" in notes[0]


def test_a_collector_that_hangs_is_given_up_and_asked_again() -> None:
    notes: list[str] = []
    with collector(holds=True) as received:
        sender = Collector(received.address, notes.append, timeout_s=0.2)
        began = time.monotonic()
        sender.send(b"1")
        sender.send(b"2")  # left out: the first has no answer yet
        assert time.monotonic() - began < 30  # no answer is waited for here: it would be 60 s
        sender.close()
        assert "gave no answer" in notes[0]
        received.hold.set()
        sender.send(b"3")
        sender.close()
    assert received.bodies[-1] == b"3"
    assert len(notes) == 1


def drip(connection: socket.socket, ended: threading.Event) -> None:
    with suppress(OSError):
        while not ended.wait(0.05):
            connection.sendall(b" ")


@pytest.mark.parametrize("part", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"])
def test_an_answer_that_drips_is_given_up(part: bytes) -> None:
    notes: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = Collector(f"otlp://127.0.0.1:{server.getsockname()[1]}", notes.append, timeout_s=0.3)
        sender.send(b"{}")
        connection, _ = server.accept()
        with connection:
            connection.settimeout(30)
            connection.sendall(part)
            ended = threading.Event()
            dripping = threading.Thread(target=drip, args=(connection, ended))
            dripping.start()
            sender.close()
            with suppress(ConnectionError):
                while connection.recv(1 << 16):
                    pass  # it hangs up: recv ends, or fails after 30 s
            ended.set()
            dripping.join()
    assert "gave no answer" in notes[0]


@pytest.mark.parametrize(
    "address",
    ["otlp://", "otlp://:1", "otlp://a:b", "otlp://user:secret@a:99999", "otlp://user:secret@a", "otlp://a?b=secret"],
)
def test_what_is_no_address_is_a_usage_error(address: str) -> None:
    with pytest.raises(UsageError) as told:
        Collector(address, pytest.fail)
    assert "secret" not in str(told.value)
