"""The server's answers to an address below its token: the page, a finding's evidence, the files of Perfetto's UI."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import PurePosixPath
from threading import Lock
from typing import Final, Protocol

from whystall.errors import WhystallError
from whystall.report.names import clean
from whystall.report.schema import Report
from whystall.view.evidence import EvidenceTrace
from whystall.view.perfetto_ui import PerfettoUi

TIMELINE: Final = "timeline/"
"""Prefix of the page's links to evidence; the finding's place in the report follows, or `STEP`."""
STEP: Final = "step"
_TRACES: Final = "trace/"
_UI: Final = "ui/"
_ASKED: Final = re.compile(rf"(?:{STEP}|[0-9]{{1,4}})")
PAGE_POLICY: Final = "frame-ancestors 'none'"  # the page itself sets the rest
_TEXT: Final = "text/plain; charset=utf-8"
HTML: Final = "text/html; charset=utf-8"
_KINDS: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": HTML,
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
    ".woff2": "font/woff2",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, and its content."""

    status: HTTPStatus
    kind: str = _TEXT
    body: bytes = b""
    policy: str = "default-src 'none'; frame-ancestors 'none'"
    headers: dict[str, str] = field(default_factory=dict)


class Answering(Protocol):
    """The interface that a server asks for answers: `Site`, or the site of a job that is running."""

    def answer(self, path: str, base: str) -> Answer:
        """The answer to ``path``, which is relative to ``base``, the address of the page."""


Cut = Callable[[int | None], EvidenceTrace]
"""Cuts the evidence of the finding at that place of the report, or a step. Raises `WhystallError` where it cannot."""


class Site:
    """A report's page and timelines. Evidence is cut on first request, one at a time, and then kept."""

    def __init__(self, report: Report, page: str, cut: Cut, ui: PerfettoUi | None) -> None:
        self._report = report
        self._page = page.encode()
        self._cut = cut
        self._ui = ui
        self._lock = Lock()
        self._evidence: dict[str, tuple[EvidenceTrace, bytes]] = {}  # files are served packed: a tenth of the text

    def answer(self, path: str, base: str) -> Answer:
        """The answer to ``path``, which is relative to ``base``, the address of the page."""
        try:
            return self._answer(path, base)
        except WhystallError as error:
            return Answer(HTTPStatus.NOT_FOUND, body=f"{clean(str(error), 1000)}\n".encode())

    def _answer(self, path: str, base: str) -> Answer:
        if path == "":
            return Answer(HTTPStatus.OK, HTML, self._page, PAGE_POLICY)
        if self._ui is not None and path.startswith(_UI):
            return self._file(self._ui, path.removeprefix(_UI))
        if path.startswith(TIMELINE) and _ASKED.fullmatch(path.removeprefix(TIMELINE)):
            return self._open(path.removeprefix(TIMELINE), base)
        asked = path.removeprefix(_TRACES).partition("/")[0]
        if path.startswith(_TRACES) and path == self._trace_path(asked):
            return Answer(HTTPStatus.OK, "application/gzip", self._evidence_of(asked)[1])
        return Answer(HTTPStatus.NOT_FOUND)

    def _file(self, ui: PerfettoUi, name: str) -> Answer:
        """A file of the UI, of those that were there at the start and no other."""
        path = ui.files.get(name)
        if path is None:
            return Answer(HTTPStatus.NOT_FOUND)
        kind = _KINDS.get(path.suffix, "application/octet-stream")
        return Answer(HTTPStatus.OK, kind, path.read_bytes(), ui.policy)

    def _open(self, asked: str, base: str) -> Answer:
        """The link to the UI at the event, or without an event to the trace itself."""
        shown, _ = self._evidence_of(asked)
        trace = base + (self._trace_path(asked) or "")
        place = self._ui.address(base + _UI, trace, shown) if self._ui else trace
        return Answer(HTTPStatus.SEE_OTHER, headers={"Location": place})

    def _trace_path(self, asked: str) -> str | None:
        """The path of the trace; its last part is its name in browsers and Perfetto."""
        if not _ASKED.fullmatch(asked):
            return None
        number = self._number(asked)
        name = STEP if number is None else self._report.findings[number].id
        told = re.sub(r"[^A-Za-z0-9.-]+", "-", clean(name, 80)).strip(".-") or "finding"
        return str(PurePosixPath(_TRACES) / asked / f"{told}.json.gz")

    def _number(self, asked: str) -> int | None:
        if asked == STEP:
            return None
        if int(asked) >= len(self._report.findings):
            raise WhystallError("the report has no such finding")
        return int(asked)

    def _evidence_of(self, asked: str) -> tuple[EvidenceTrace, bytes]:
        number = self._number(asked)
        with self._lock:
            if asked not in self._evidence:
                shown = self._cut(number)
                self._evidence[asked] = (replace(shown, json=b""), shown.gzipped)
            return self._evidence[asked]
