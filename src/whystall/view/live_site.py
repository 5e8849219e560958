"""Answers of the server about a running job: the page of the last look, and the report so far."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from threading import Lock
from typing import Final

from whystall.view.site import HTML, PAGE_POLICY, Answer

REPORT: Final = "report"
"""The path of the report so far, below the page's address."""


class LiveSite:
    """Pages that are replaced while they are served. The live one is refreshed by a header, without a script."""

    def __init__(self, *, every_s: float) -> None:
        self._refresh = {"Refresh": f"{max(round(every_s), 1)}"}
        self._page = b""
        self._ended = False
        self._report: Callable[[], str] | None = None
        self._lock = Lock()

    def show(self, page: str, report: Callable[[], str] | None, *, ended: bool) -> None:
        """Serves that from now on; ``report`` makes the page of the report so far, on request."""
        with self._lock:
            self._page, self._report, self._ended = page.encode(), report, ended

    def answer(self, path: str, base: str) -> Answer:  # noqa: ARG002 - the server's protocol
        """The answer to ``path``; there is nothing before the first look."""
        with self._lock:
            page, report, headers = self._page, self._report, {} if self._ended else self._refresh
        if path == "" and page:
            return Answer(HTTPStatus.OK, HTML, page, PAGE_POLICY, dict(headers))
        if path == REPORT and report is not None:
            return Answer(HTTPStatus.OK, HTML, report().encode(), PAGE_POLICY)
        return Answer(HTTPStatus.NOT_FOUND)
