"""``whystall serve what-if``: what other settings of the server would bring, by a replay of the recorded arrivals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from whystall.cli import inputs, output, serve_flags
from whystall.errors import UsageError

if TYPE_CHECKING:
    from argparse import Namespace

    from whystall.cli.console import Console
    from whystall.serving.what_if import Answer

SCHEMA = "whystall.serving-what-if/1"


def run(options: Namespace, console: Console) -> int:
    """Prints the answer, or the sentence that says why there is none; 0."""
    output.targets(options)
    changes = _changes(options)
    from whystall.report.what_if_text import what_if_document
    from whystall.serving.what_if import ask

    found = ask([Path(name) for name in options.paths], changes, inputs.limits(options))
    output.print_and_write(options, console, lambda _: what_if_document(found), lambda: _json(found))
    if found.prediction is not None:
        console.next("start the server with the change, repeat the same arrivals, and compare both reports")
    return 0


def _changes(options: Namespace) -> dict[str, int | bool]:
    """The settings to play. Raises ``UsageError`` where there is none, or one that a replay cannot have."""
    known = ", ".join((*serve_flags.REPLAYED, serve_flags.CACHING))
    flag = serve_flags.refused(options)
    if flag is not None:
        raise UsageError(f"a replay does not answer {flag}: {serve_flags.NOT_REPLAYED[flag]}. It knows {known}")
    changes = serve_flags.values(options)
    if not changes:
        raise UsageError(f"`serve what-if` needs a setting to play: {known}")
    for name, value in changes.items():
        if not isinstance(value, bool) and not 1 <= value < 1 << 40:
            raise UsageError(f"{name} takes a number from 1, not {value}")
    return changes


def _json(found: Answer) -> str:
    import msgspec

    body = {"schema": SCHEMA} | msgspec.to_builtins(found)
    return msgspec.json.format(msgspec.json.encode(body), indent=1).decode()
