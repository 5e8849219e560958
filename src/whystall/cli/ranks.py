"""``whystall ranks``: the cost of slow ranks, stages and links, from logs or the collectives of traces alone."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from whystall.errors import UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from whystall.cli.console import Console
    from whystall.fleet import Slowdowns
    from whystall.fleet.logs import CommLog

SCHEMA = "whystall.ranks/1"
LOGS_SCHEMA = "whystall.comm-log/1"
_MOST_RANKS = 1 << 20


class Ranks:
    """The verb ``ranks``."""

    name = "ranks"
    help = "what slow ranks, stages and links cost, from logs or collectives"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""
        parser.add_argument(
            "logs",
            nargs="+",
            metavar="LOG",
            help="operation log (Parquet), or logs or folders of nccl-tests, NCCL inspector or RAS, DeepSpeed, traces",
        )
        parser.add_argument(
            "--group-size",
            action="append",
            default=[],
            metavar="[KIND=]N",
            help="ranks of the groups of a DeepSpeed comms log, which does not say them: 8, or all_gather=8",
        )
        parser.add_argument("--json", action="store_true", help=f"print as JSON (schema {SCHEMA} or {LOGS_SCHEMA})")

    def run(self, options: Namespace, console: Console) -> int:
        """Prints the result of the logs; 0."""
        from whystall.fleet.logs import is_operation_log, read_logs

        paths = [Path(name) for name in options.logs]
        sizes = group_sizes(options.group_size)
        if any(is_operation_log(path) for path in paths):
            if len(paths) > 1:
                raise UsageError("an operation log is read alone: give one Parquet file, or other logs")
            return _slowdowns(options, console)
        found = read_logs(paths, sizes)
        if options.json:
            console.result(_logs_json(found))
        else:
            from whystall.report.comm_log_text import render_logs

            console.result(render_logs(found).rstrip("\n"))
        if any(one.format == "PyTorch traces" for one in found):
            console.next(f"whystall analyze {shlex.join(options.logs)}, which explains why")
        else:
            console.next("whystall probe comm, what this machine's own links do")
        return 0


def group_sizes(texts: Sequence[str]) -> dict[str | None, int]:
    """Ranks of groups by kind of collective, with ``None`` for every other kind. Raises ``UsageError``."""
    from whystall.vocabulary.collectives import conventions

    found: dict[str | None, int] = {}
    for text in texts:
        kind, separator, number = text.rpartition("=")
        if re.fullmatch(r"[0-9]{1,12}", number) is None or not 1 <= int(number) <= _MOST_RANKS:
            raise UsageError(f"--group-size wants a number of ranks, or KIND=N, not {text[:60]!r}")
        if separator and kind not in conventions():
            raise UsageError(f"{kind[:60]!r} is no collective; {', '.join(conventions())} are")
        found[kind if separator else None] = int(number)
    return found


def _slowdowns(options: Namespace, console: Console) -> int:
    from whystall.fleet import slowdowns
    from whystall.report.straggler_text import render_slowdowns

    found = slowdowns(options.logs[0])
    console.result(_json(found) if options.json else render_slowdowns(found))
    console.next("whystall analyze TRACES, of the workers that are named: why they are slow")
    return 0


def _logs_json(found: Sequence[CommLog]) -> str:
    import msgspec

    from whystall.report.comm_log_text import summarize

    logs = [{"summary": summarize(one)} | msgspec.to_builtins(one) for one in found]
    return msgspec.json.format(msgspec.json.encode({"schema": LOGS_SCHEMA, "logs": logs}), indent=1).decode()


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
