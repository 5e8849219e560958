"""``whystall serve what-if``: the effect of other settings of the server, by a replay of the recorded arrivals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from whystall.cli import inputs, output, serve_flags
from whystall.errors import UsageError
from whystall.serving.server import REPLAYED

if TYPE_CHECKING:
    from argparse import Namespace

    from whystall.cli.console import Console


def run(options: Namespace, console: Console) -> int:
    """Prints the answer, or the sentence that says why there is none; 0."""
    output.targets(options)
    changes = _changes(options)
    from whystall.report.what_if_text import what_if_document
    from whystall.serving.encoding import as_json
    from whystall.serving.what_if import SCHEMA, ask

    found = ask([Path(name) for name in options.paths], changes, inputs.limits(options))
    output.print_and_write(options, console, lambda _: what_if_document(found), lambda: as_json(found, SCHEMA))
    if found.prediction is not None:
        console.next("start the server with the change, repeat the same arrivals, and compare both reports")
    return 0


def _changes(options: Namespace) -> dict[str, int | bool]:
    """The settings to play. Raises ``UsageError`` where there is none, or one that a replay cannot have."""
    changes = serve_flags.changes(options)
    if not changes:
        raise UsageError(f"`serve what-if` needs a setting to play: {', '.join(REPLAYED)}")
    for name, value in changes.items():
        if not isinstance(value, bool) and not 1 <= value < 1 << 40:
            raise UsageError(f"{name} takes a number from 1, not {value}")
    return changes
