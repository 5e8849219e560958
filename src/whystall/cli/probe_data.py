"""``whystall probe data``: a loader's supply, by number of workers, and its bound."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from whystall.cli import output
from whystall.cli.users_code import users_own_errors
from whystall.errors import UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from whystall.cli.console import Console
    from whystall.probe.data.results import DataProbe

SECONDS = "2"
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the options of ``probe data`` alone."""
    group = parser.add_argument_group("of data")
    group.add_argument(
        "target",
        nargs="?",
        metavar="MOD:DATASET_OR_LOADER",
        help="package.module:name or file.py:name of a data set, a DataLoader, or a function that returns one",
    )
    group.add_argument("--batch", metavar="N", help="samples a batch, for a data set (32)")
    group.add_argument("--step", metavar="50ms", help="how long a training step takes: says how long it would wait")
    group.add_argument("--max-workers", metavar="N", help="predict up to this many (twice the cores, at least 4)")


def run(options: Namespace, console: Console, seconds: float) -> int:
    """Prints the loader's supply; 0."""
    output.targets(options)
    if options.target is None:
        raise UsageError("probe data wants a loader: package.module:name or file.py:name")
    batch, most = _number(options.batch, "--batch", 1), _number(options.max_workers, "--max-workers", 0)
    step_s = None if options.step is None else duration_s(options.step, "--step")
    console.detail("importing torch")
    with users_own_errors(options.target, console):
        from whystall.probe.data.run import probe_data

        found = probe_data(
            options.target,
            batch=batch,
            step_s=step_s,
            most_workers=most,
            seconds=seconds,
            progress=lambda text: console.detail(f"measuring {text}"),
        )
    from whystall.report.data_text import loader_document

    output.print_and_write(options, console, lambda _: loader_document(found), lambda: _json(found))
    console.next("whystall run SCRIPT, which says whether steps wait for input at all")
    return 0


def _json(found: DataProbe) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(found), indent=1).decode()


def duration_s(text: str, option: str) -> float:
    """Seconds of ``50ms``, ``0.2s`` or ``800us``; a number alone is in seconds."""
    found = re.fullmatch(r"([0-9]*\.?[0-9]+) ?(us|ms|s)?", text)
    value = float(found[1]) * _UNITS[found[2] or "s"] if found else 0.0
    if not 0 < value <= 3600:
        raise UsageError(f"{option} wants a time such as 50ms, not {text[:40]!r}")
    return value


def _number(text: str | None, option: str, least: int) -> int | None:
    if text is None:
        return None
    if re.fullmatch(r"[0-9]{1,6}", text) is None or int(text) < least:
        raise UsageError(f"{option} wants a whole number from {least} on, not {text[:40]!r}")
    return int(text)
