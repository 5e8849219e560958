"""``whystall roles``: one ledger over a job whose processes do different things: trainers, rollout servers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from whystall.cli import output
from whystall.errors import UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from whystall.cli.console import Console
    from whystall.fleet.roles import Found, Source

SCHEMA = "whystall.roles/1"
_NAMED = re.compile(r"([A-Za-z][\w .-]{0,40})=(.+)", re.DOTALL)


class Roles:
    """The verb ``roles``."""

    name = "roles"
    help = "who waits for whom in a job of several roles: trainers, rollout servers, rewards"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""
        parser.add_argument(
            "sources",
            nargs="+",
            metavar="[ROLE=]PATH",
            help="runs or traces of the processes of a role; without ROLE= the marks in a trace separate the roles",
        )
        parser.add_argument("--json", action="store_true", help=f"print as JSON (schema {SCHEMA})")
        parser.add_argument("--no-cache", action="store_true", help="neither read nor write the cache of parsed traces")
        output.add_output(parser)

    def run(self, options: Namespace, console: Console) -> int:
        """Prints the ledger over roles, writes it to ``-o``; 0."""
        output.targets(options)
        sources = [source_of(text) for text in options.sources]
        if len({source.role is None for source in sources}) > 1:
            raise UsageError("either each PATH has its ROLE=, or none has")
        from whystall.fleet.roles import read_roles
        from whystall.report.roles_text import roles_document

        found = read_roles(sources, cache=not options.no_cache)
        output.print_and_write(
            options, console, lambda _: roles_document(found.roles, found.by, found.notes), lambda: _json(found)
        )
        console.next("whystall analyze PATH, of the role that the others wait for: why it is slow")
        return 0


def source_of(text: str) -> Source:
    """The source that an argument names.

    >>> source_of("trainer=runs/a"), source_of("runs/a")
    (Source(role='trainer', path='runs/a'), Source(role=None, path='runs/a'))
    """
    from whystall.fleet.roles import Source

    match = _NAMED.fullmatch(text)
    return Source(match[1].strip(), match[2]) if match else Source(None, text)


def _json(found: Found) -> str:
    import msgspec

    from whystall.report.roles_text import summarize

    body = {"schema": SCHEMA, "summary": summarize(found.roles), "by": found.by, "notes": found.notes}
    return msgspec.json.format(msgspec.json.encode(body | msgspec.to_builtins(found.roles)), indent=1).decode()
