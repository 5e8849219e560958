"""``whystall doctor``: can this machine capture and analyse, and if not, which parts are missing."""

from __future__ import annotations

from importlib import util
from typing import TYPE_CHECKING

from whystall.errors import UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from whystall.cli.console import Console
    from whystall.hardware.checkup import Check

MARKS = {"ok": "ok  ", "warning": "warn", "missing": "none"}


class Doctor:
    """The verb ``doctor``."""

    name = "doctor"
    help = "say whether this machine can capture and analyse"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""
        parser.add_argument("--json", action="store_true", help="print the checks as JSON")
        parser.add_argument(
            "--import-torch", action="store_true", help="import torch to ask for its devices (takes seconds)"
        )
        parser.add_argument(
            "--build-counter",
            action="store_true",
            help="compile what makes FlopCounter twice as fast for the torch that is installed (needs g++, "
            "some ten seconds)",
        )

    def run(self, options: Namespace, console: Console) -> int:
        """Prints the checks; returns 0 for any result."""
        from whystall.hardware.checkup import checkup

        if options.build_counter:
            _build_counter()
        asks_torch = options.import_torch or options.build_counter
        checks = checkup(import_torch=asks_torch)
        if asks_torch and checks[-1].status == "ok":
            checks.append(_counter())
        console.result(_as_json(checks) if options.json else _as_text(checks))
        console.next("whystall demo")
        return 0


def _build_counter() -> None:
    if util.find_spec("torch") is None:
        raise UsageError("counting is compiled against torch, which is not installed")
    from whystall.model import native

    native.build()


def _counter() -> Check:
    from whystall.hardware.checkup import Check
    from whystall.model import native
    from whystall.model.native import background

    if native.load() is not None:
        return Check("FLOP counter", "ok", "compiled for this torch")
    failed = background.failure()
    if failed is not None:
        return Check(
            "FLOP counter", "ok", f"counts by Python alone: {failed}", "try again: whystall doctor --build-counter"
        )
    return Check("FLOP counter", "ok", "counts by Python alone", "twice as fast after whystall doctor --build-counter")


def _as_json(checks: Sequence[Check]) -> str:
    import json

    rows = [
        {"check": check.name, "status": check.status, "found": check.found, "advice": check.advice} for check in checks
    ]
    return json.dumps({"schema": "whystall.doctor/1", "checks": rows}, indent=1)


def _as_text(checks: Sequence[Check]) -> str:
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{MARKS[check.status]}  {check.name:{width}}  {check.found}")
        if check.advice:
            lines.append(f"{'':{width + 8}}{check.advice}")
    return "\n".join(lines)
