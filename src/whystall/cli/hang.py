"""``whystall hang``: the rank that keeps a job waiting, and the operation, from PyTorch's flight recorder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from whystall.cli.console import Console
    from whystall.fleet import Hangs

SCHEMA = "whystall.hang/1"


class Hang:
    """The verb ``hang``."""

    name = "hang"
    help = "which rank keeps a job waiting, from dumps of PyTorch's flight recorder"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""
        parser.add_argument("dumps", nargs="+", metavar="DUMPS", help="a folder with a dump of each rank, or the files")
        parser.add_argument("--json", action="store_true", help=f"print as JSON (schema {SCHEMA})")

    def run(self, options: Namespace, console: Console) -> int:
        """Prints the result of the dumps; 0."""
        from whystall.fleet import find_hangs, read_dumps
        from whystall.report.hang_text import render_hangs

        dumps, left_out = read_dumps([Path(name) for name in options.dumps])
        found = find_hangs(dumps, left_out)
        console.result(_json(found) if options.json else render_hangs(found))
        console.next("py-spy dump --pid PID, on the rank that is named: where its Python stands now")
        return 0


def _json(found: Hangs) -> str:
    import msgspec

    from whystall.report.hang_text import summarize

    body = {"schema": SCHEMA, "summary": summarize(found)} | msgspec.to_builtins(found)
    return msgspec.json.format(msgspec.json.encode(body), indent=1).decode()
