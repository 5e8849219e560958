"""Shared code of the verbs that serve a page: its address, and opening the user's browser."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from whystall.errors import UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser

_LAST_PORT: Final = 65535


def add_serving(parser: ArgumentParser) -> None:
    """Declares where the server listens, and whether a browser is opened."""
    parser.add_argument("--port", type=int, default=0, metavar="N", help="listen there (default: a free port)")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def check_port(port: int) -> None:
    """Raises `UsageError` for an invalid port."""
    if not 0 <= port <= _LAST_PORT:
        raise UsageError(f"--port wants a number up to {_LAST_PORT}, not {port}")


def open_browser(address: str) -> None:
    """Opens the browser, where there is a screen: one in the terminal would take it from the server."""
    import webbrowser

    if not sys.platform.startswith("linux") or os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"}:
        webbrowser.open(address)
