"""``whystall explain``: the meaning of a cause, its measurement, its remedy, and its proof."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING

from whystall.errors import UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from whystall.cli.console import Console
    from whystall.diagnosis.rule import Rule

_NARROWEST = 40


class Explain:
    """The verb ``explain``."""

    name = "explain"
    help = "what a cause means, how it is measured, how to fix it"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""
        parser.add_argument("cause", nargs="?", metavar="CAUSE", help="the cause's id; without one, all are listed")
        parser.add_argument("--json", action="store_true", help="print as JSON")

    def run(self, options: Namespace, console: Console) -> int:
        """Prints one cause, or the list of all; 0."""
        from whystall._inputs import known_rules

        known = known_rules()
        if options.cause is None:
            chosen = list(known.values())
            console.result(_json(chosen) if options.json else _list(chosen))
            console.next("whystall explain host.sync")
            return 0
        rule = known.get(options.cause)
        if rule is None:
            import difflib

            near = difflib.get_close_matches(options.cause, known, n=3, cutoff=0.4)
            hint = f"did you mean {', '.join(near)}?" if near else "`whystall explain` lists all"
            raise UsageError(f"no cause is called {options.cause!r}: {hint}")
        console.result(_json(rule) if options.json else _page(rule, max(min(console.width, 100), _NARROWEST)))
        console.next("whystall analyze TRACE")
        return 0


def _json(value: Rule | list[Rule]) -> str:
    from whystall.diagnosis.catalogue import described

    shown = [described(rule) for rule in value] if isinstance(value, list) else described(value)
    return json.dumps(shown, indent=1, ensure_ascii=False)


def _list(chosen: list[Rule]) -> str:
    causes = [rule.cause for rule in chosen]
    width = max(len(cause.id) for cause in causes)
    return "\n".join(
        f"{cause.id.ljust(width)}  {cause.title}{' (no rule yet)' if cause.unseen else ''}" for cause in causes
    )


def _page(rule: Rule, width: int) -> str:
    from whystall.diagnosis.catalogue import found_in

    cause = rule.cause
    decides = [f"{one.value:,.12g}: {one.is_} ({one.source})" for one in cause.thresholds.values()]
    parts = [
        ("What it is", cause.meaning),
        ("How it is measured", cause.measured),
        ("Where it is found", found_in(rule) or f"no rule looks for it yet: {cause.unseen}"),
        ("Thresholds", "\n".join(decides) or None),
        ("What to do", cause.remedy),
        ("The change", cause.patch),
        ("Risk", cause.risk),
        ("It worked when", cause.proof),
        ("Which step shows it", "the mean: it happens now and then" if cause.episodic else None),
    ]
    text = [f"{cause.id}: {cause.title}", ""]
    for heading, value in parts:
        if value is None:
            continue
        text.append(heading)
        for line in value.splitlines():
            text += [f"  {part}" for part in ([line] if heading == "The change" else textwrap.wrap(line, width - 2))]
        text.append("")
    return "\n".join(text).rstrip()
