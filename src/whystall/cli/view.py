"""``whystall view``: the report and Perfetto's timeline, opened at its findings, in the browser of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whystall.cli import inputs
from whystall.cli.browser import add_serving, check_port, open_browser
from whystall.cli.rendering import render_page

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from whystall.cli.console import Console


class View:
    """The verb ``view``."""

    name = "view"
    help = "the report in the browser, and Perfetto's timeline opened at each finding"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""
        parser.add_argument("paths", nargs="+", metavar="PATH", help="trace, folder, glob, run folder or report.json")
        add_serving(parser)
        inputs.add_reading(parser)

    def run(self, options: Namespace, console: Console) -> int:
        """Serves until it is interrupted; 0."""
        check_port(options.port)
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
                open_browser(server.address)
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                console.note("\nwhystall: the server has ended")
        return 0
