"""What is answered to each address; the token and the asker are the server's business."""

from __future__ import annotations

import gzip
import json
from http import HTTPStatus
from pathlib import Path

import pytest
from tests.view.conftest import Fetching

from whystall.errors import InputError
from whystall.view.evidence import EvidenceTrace, cut_from
from whystall.view.perfetto_ui import PerfettoUi
from whystall.view.site import Site

BASE = "http://127.0.0.1:8000/token/"


@pytest.fixture
def ui(tmp_path: Path) -> PerfettoUi:
    (tmp_path / "index.html").write_text("<p>UI</p>")
    (tmp_path / "engine.wasm").write_bytes(b"\0asm")
    (tmp_path / "secret").write_text("not listed")
    files = {name: tmp_path / (name or "index.html") for name in ("", "engine.wasm")}
    return PerfettoUi(files, "script-src 'self'")


def site(job: Fetching, ui: PerfettoUi | None) -> Site:
    return Site(job.report, "<h1>page</h1>", cut_from(job.report, lambda rank: job.trace), ui)


def test_the_page_stands_at_the_address_itself(job: Fetching, ui: PerfettoUi) -> None:
    answer = site(job, ui).answer("", BASE)
    assert (answer.status, answer.body) == (HTTPStatus.OK, b"<h1>page</h1>")
    assert answer.kind.startswith("text/html")
    assert "frame-ancestors 'none'" in answer.policy


def test_a_finding_leads_to_the_ui_with_its_trace(job: Fetching, ui: PerfettoUi) -> None:
    own = site(job, ui)
    answer = own.answer("timeline/0", BASE)
    assert answer.status == HTTPStatus.SEE_OTHER
    assert answer.headers["Location"].startswith(f"{BASE}ui/?")
    trace = own.answer("trace/0/input.synchronous-loader.json.gz", BASE)
    assert trace.status == HTTPStatus.OK
    assert json.loads(gzip.decompress(trace.body))["traceEvents"]


def test_without_the_ui_it_leads_to_the_trace_itself(job: Fetching) -> None:
    own = site(job, None)
    assert own.answer("timeline/step", BASE).headers["Location"] == f"{BASE}trace/step/step.json.gz"
    assert own.answer("trace/step/step.json.gz", BASE).status == HTTPStatus.OK
    assert own.answer("ui/", BASE).status == HTTPStatus.NOT_FOUND


def test_the_ui_s_files_have_its_policy_and_their_kinds(job: Fetching, ui: PerfettoUi) -> None:
    answer = site(job, ui).answer("ui/engine.wasm", BASE)
    assert (answer.kind, answer.body, answer.policy) == ("application/wasm", b"\0asm", "script-src 'self'")
    assert site(job, ui).answer("ui/", BASE).body == b"<p>UI</p>"


@pytest.mark.parametrize(
    "path",
    [
        "ui/secret",
        "ui/../secret",
        "ui//etc/passwd",
        "../",
        "timeline/99",
        "timeline/-1",
        "timeline/0/1",
        "timeline/²",
        "trace/0/../../x",
        "trace/0",
        "trace/99/x.json.gz",
        "favicon.ico",
    ],
)
def test_nothing_else_is_there(job: Fetching, ui: PerfettoUi, path: str) -> None:
    assert site(job, ui).answer(path, BASE).status == HTTPStatus.NOT_FOUND


def test_evidence_that_cannot_be_cut_is_told_in_a_sentence(job: Fetching, ui: PerfettoUi) -> None:
    def gone(number: int | None) -> EvidenceTrace:
        raise InputError("no recording of rank 0 is there: its file is gone")

    answer = Site(job.report, "", gone, ui).answer("timeline/0", BASE)
    assert (answer.status, answer.body) == (
        HTTPStatus.NOT_FOUND,
        b"no recording of rank 0 is there: its file is gone\n",
    )


def test_evidence_is_cut_once(job: Fetching, ui: PerfettoUi) -> None:
    cuts: list[int | None] = []

    def cut(number: int | None) -> EvidenceTrace:
        cuts.append(number)
        return cut_from(job.report, lambda rank: job.trace)(number)

    own = Site(job.report, "", cut, ui)
    for _ in range(3):
        own.answer("timeline/0", BASE)
        own.answer("trace/0/input.synchronous-loader.json.gz", BASE)
    assert cuts == [0]


@pytest.mark.parametrize("number", ["\u0660", "\uff10", "1\u0663", "\u00b2", "\u0966"])
@pytest.mark.parametrize("place", ["timeline/{}", "trace/{}/x.json.gz"])
def test_digits_of_other_scripts_name_no_finding(job: Fetching, ui: PerfettoUi, place: str, number: str) -> None:
    assert site(job, ui).answer(place.format(number), BASE).status == HTTPStatus.NOT_FOUND
