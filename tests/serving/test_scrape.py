"""Readings of ``/metrics``: when they are taken, when they are tried again, and why none has come."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.serving.metrics_server import Metrics, serving, texts
from tests.serving.server import Engine, steady

from whystall.serving.recording.own_lines import OwnLines
from whystall.serving.recording.scrape import Endpoint, Scrape


@pytest.fixture
def vllm() -> Iterator[Metrics]:
    with serving(Metrics(texts(Engine().serve(steady(10))))) as server:
        yield server


def scrape_of(port: int, folder: Path, every_s: float = 1.0) -> Scrape:
    return Scrape(folder, Endpoint("127.0.0.1", port), every_s, OwnLines(steps=False), since_s=0.0)


def test_the_first_reading_is_taken_at_once(vllm: Metrics, tmp_path: Path) -> None:
    scrape = scrape_of(vllm.server_port, tmp_path, every_s=3600.0)

    with scrape.running():
        vllm.wait_for(1)

    assert scrape.readings == 1


def test_a_failure_is_tried_again_later_and_forgotten_after_a_reading(vllm: Metrics, tmp_path: Path) -> None:
    scrape = scrape_of(vllm.server_port, tmp_path)
    assert (scrape.read_once(1.0), scrape.failure) == (1.0, None)

    vllm.status = 503
    assert (scrape.read_once(1.0), scrape.failure) == (2.0, "answered with status 503")
    assert scrape.read_once(2.0) == 4.0

    vllm.status = 200
    assert (scrape.read_once(4.0), scrape.failure) == (1.0, None)
    assert scrape.readings == 2
    scrape.close()


def test_a_refused_connection_is_tried_again_after_the_usual_pause(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    scrape = scrape_of(port, tmp_path)

    assert [scrape.read_once(1.0) for _ in range(3)] == [1.0, 1.0, 1.0]
    assert (scrape.readings, scrape.failure) == (0, None)


def test_a_server_that_is_gone_is_said(tmp_path: Path) -> None:
    with serving(Metrics(texts(Engine().serve(steady(10))))) as server:
        scrape = scrape_of(server.server_port, tmp_path)
        scrape.read_once(1.0)
        scrape.close()

    assert scrape.read_once(1.0) == 1.0
    assert scrape.failure == "is gone: nothing listens at this address"
