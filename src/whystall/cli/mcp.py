"""``whystall mcp``: answers an agent's questions about the runs of given folders, over stdio."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from whystall.errors import UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from whystall.cli.console import Console


class Mcp:
    """The verb ``mcp``."""

    name = "mcp"
    help = "serve reports, findings and events to an agent over stdio (Model Context Protocol)"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""
        parser.add_argument("folders", nargs="+", metavar="FOLDER", help="folders whose runs may be asked for")
        parser.add_argument(
            "--job", metavar="COMMAND", help="a command, in quotes: clients may have changes of its program judged"
        )

    def run(self, options: Namespace, console: Console) -> int:
        """Serves until the client closes standard input; 0."""
        if find_spec("mcp") is None:
            raise UsageError("`whystall mcp` needs the package mcp: pip install 'whystall[mcp]'")
        from whystall.mcp_server.server import serve

        console.note(f"whystall: serving {', '.join(options.folders)} over stdio until standard input ends")
        serve(options.folders, options.job)
        return 0
