"""``whystall view``: the report and Perfetto's timeline, opened at its findings, in the browser of this machine."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from whystall.cli import inputs
from whystall.cli.rendering import render_page
from whystall.errors import UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from whystall.cli.console import Console

_LAST_PORT = 65535


class View:
    """The verb ``view``."""

    name = "view"
    help = "the report in the browser, and Perfetto's timeline opened at each finding"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""
        parser.add_argument("paths", nargs="+", metavar="PATH", help="trace, folder, glob, run folder or report.json")
        parser.add_argument("--port", type=int, default=0, metavar="N", help="listen there (default: a free port)")
        parser.add_argument("--no-browser", action="store_true", help="only print the address")
        inputs.add_reading(parser)

    def run(self, options: Namespace, console: Console) -> int:
        """Serves until it is interrupted; 0."""
        if not 0 <= options.port <= _LAST_PORT:
            raise UsageError(f"--port wants a number up to {_LAST_PORT}, not {options.port}")
        report = inputs.report_from(options.paths, options, console)

        from whystall.view.evidence import cut_from
        from whystall.view.perfetto_ui import HOW_TO_GET_IT, bundled_ui
        from whystall.view.recorded import Recorded
        from whystall.view.server import LoopbackServer
        from whystall.view.site import Site

        ui = bundled_ui()
        recorded = Recorded(options.paths, report, cache=not options.no_cache, limits=inputs.limits(options))
        site = Site(report, render_page(report, perfetto=ui is not None), cut_from(report, recorded.trace_of), ui)
        with LoopbackServer(site, port=options.port) as server:
            if ui is None:
                console.note(f"whystall: {HOW_TO_GET_IT}")
            console.result(server.address)
            console.note("whystall: this machine alone can open it, with this address; Ctrl+C ends it")
            if not options.no_browser:
                _open(server.address)
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                console.note("\nwhystall: the server has ended")
        return 0


def _open(address: str) -> None:
    """Opens the browser, where there is a screen: one in the terminal would take it from the server."""
    import webbrowser

    if not sys.platform.startswith("linux") or os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"}:
        webbrowser.open(address)
