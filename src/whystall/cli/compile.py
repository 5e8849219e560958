"""``whystall compile``: where the time of torch.compile goes, from the compiler's structured log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from whystall.cli import inputs, output

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from whystall.cli.console import Console
    from whystall.compilation.results import Account

SCHEMA = "whystall.compile/1"


class Compile:
    """The verb ``compile``."""

    name = "compile"
    help = "what torch.compile took, broke and compiled again, from its structured log (TORCH_TRACE)"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""
        parser.add_argument("logs", nargs="+", metavar="LOGS", help="logs of one process or of all ranks, or folders")
        parser.add_argument("--json", action="store_true", help=f"print as JSON (schema {SCHEMA})")
        parser.add_argument("--no-limits", action="store_true", help="read a packed file at any unpacked size")
        output.add_output(parser)

    def run(self, options: Namespace, console: Console) -> int:
        """Prints the compile account, writes it to ``-o``; 0."""
        output.targets(options)
        from whystall.compilation.read import read_account
        from whystall.report.compile_text import compile_document

        account = read_account([Path(name) for name in options.logs], inputs.limits(options))
        output.print_and_write(options, console, lambda _: compile_document(account), lambda: _json(account))
        console.next("whystall run SCRIPT, to see what graph breaks and guards cost each step")
        return 0


def _json(account: Account) -> str:
    import msgspec

    from whystall.report.compile_text import summarize

    body = {"schema": SCHEMA, "summary": summarize(account)} | msgspec.to_builtins(account)
    return msgspec.json.format(msgspec.json.encode(body), indent=1).decode()
