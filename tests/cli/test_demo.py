from __future__ import annotations

import gzip
import json
import re
import webbrowser
from importlib.resources import files
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Cli, FakeApi


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    pages: list[str] = []
    monkeypatch.setattr(webbrowser, "open", pages.append)
    monkeypatch.setenv("DISPLAY", ":0")
    return pages


def test_the_page_is_written_and_opened(cli: Cli, api: FakeApi, opened: list[str], tmp_path: Path) -> None:
    outcome = cli("demo", "-o", "page.html")

    assert outcome.code == 0
    assert outcome.out.splitlines()[-1] == "report: page.html"
    assert opened == [(tmp_path / "page.html").as_uri()]


def test_the_page_stays_closed_on_request(cli: Cli, api: FakeApi, opened: list[str]) -> None:
    cli("demo", "-o", "page.html", "--no-open")

    assert opened == []


def test_no_browser_is_started_without_a_display(
    cli: Cli, api: FakeApi, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr("sys.platform", "linux")

    cli("demo", "-o", "page.html")

    assert opened == []


def test_the_demo_reads_its_own_recording_and_leaves_no_cache(cli: Cli, api: FakeApi) -> None:
    cli("demo", "-o", "page.html", "--no-open")

    ((path, options),) = api.analyzed
    assert path.name == "recording.json.gz"
    assert options["cache"] is False


@pytest.mark.parametrize("name", ["page.pdf", "page.json"])
def test_the_demo_writes_pages_only(name: str, cli: Cli, api: FakeApi) -> None:
    assert cli("demo", "-o", name).code == 2


def test_the_recording_is_small_and_names_no_machine() -> None:
    data = (files("whystall") / "demo" / "recording.json.gz").read_bytes()
    text = gzip.decompress(data).decode()
    trace = json.loads(text)

    assert len(data) <= 300_000
    assert not {"host_name", "hostname", "trace_id", "traceName"} & trace.keys()
    assert re.findall(r'(?:/home|/root|/tmp|/work|/opt|/usr|/Users)/[^"\s]*', text) == []
    assert "nn.Module: GPT_0" in text
