"""``whystall ranks``: what slow ranks, stages and operations cost a job, from its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from whystall.cli.console import Console
    from whystall.fleet.slowdowns import Slowdowns

SCHEMA = "whystall.ranks/1"


class Ranks:
    """The verb ``ranks``."""

    name = "ranks"
    help = "what slow ranks, stages and operations cost a job, from its log"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""
        parser.add_argument("log", metavar="LOG", help="operation log (Parquet), as ByteDance publishes them")
        parser.add_argument("--json", action="store_true", help=f"print as JSON (schema {SCHEMA})")

    def run(self, options: Namespace, console: Console) -> int:
        """Prints the slowdowns; 0."""
        from whystall.fleet import slowdowns
        from whystall.report.straggler_text import render_slowdowns

        found = slowdowns(options.log)
        console.result(_json(found) if options.json else render_slowdowns(found))
        console.next("whystall analyze TRACES, of the workers that are named: why they are slow")
        return 0


def _json(found: Slowdowns) -> str:
    import msgspec

    from whystall.report.straggler_text import summarize

    workers = [{"dp_rank": rank, "stage": stage, "slowdown": value} for (rank, stage), value in found.by_worker.items()]
    body = {"schema": SCHEMA, "summary": summarize(found)} | {
        name: msgspec.to_builtins(getattr(found, name), str_keys=True)
        for name in found.__dataclass_fields__
        if name != "by_worker"
    }
    return msgspec.json.format(msgspec.json.encode(body | {"by_worker": workers}), indent=1).decode()
