"""The page of ``whystall watch --page``: the terminal's content, on loopback, new with each look."""

from __future__ import annotations

from functools import partial
from threading import Event, Thread
from typing import TYPE_CHECKING

from whystall.cli.browser import open_browser

if TYPE_CHECKING:
    from whystall.cli.console import Console
    from whystall.report.live_page import LiveJob


class LivePage:
    """A server on a thread of its own, whose pages each look replaces."""

    def __init__(self, console: Console, *, port: int, every_s: float, browser: bool) -> None:
        from whystall.view.live_site import LiveSite
        from whystall.view.server import LoopbackServer

        self._console = console
        self._browser = browser
        self._site = LiveSite(every_s=every_s)
        self._server = LoopbackServer(self._site, port=port)
        self._ended = Event()
        self._thread = Thread(target=self._server.serve_forever, name="whystall-live-page", daemon=True)

    def show(self, job: LiveJob) -> None:
        """Serves the state of the last look; the first one begins the server and prints its address."""
        from whystall.cli.rendering import render
        from whystall.report.document_page import as_page
        from whystall.report.live_page import live_document
        from whystall.view.live_site import REPORT

        report = None if job.report is None else partial(render, job.report, "html")
        self._site.show(as_page(live_document(job, whole_report=REPORT)), report, ended=job.ended)
        if not self._thread.is_alive():
            self._thread.start()
            self._console.result(self._server.address)
            self._console.note("whystall: this machine alone can open it, with this address; Ctrl+C ends it")
            if self._browser:
                open_browser(self._server.address)

    def stay(self) -> None:
        """Goes on to serve the job's last state, until it is interrupted."""
        self._console.note("whystall: the page stays until Ctrl+C")
        try:
            # Looking again now and then: a signal that another thread took is handled when this one wakes.
            while not self._ended.wait(1.0):
                pass
        except KeyboardInterrupt:
            self._console.note("\nwhystall: the server has ended")

    def close(self) -> None:
        """Ends the server."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._ended.set()
            self._thread.join()
        self._server.server_close()
