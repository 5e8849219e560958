"""``whystall attach``: observes a running process that was not started through whystall, from outside."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from whystall.errors import UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from whystall.cli.console import Console

_LOW_PRIORITY = 5  # lower, and a job on all cores would leave no time to look at it
_LEAST_S, _MOST_S = 1, 600
_SHORTEST_WINDOW_S, _LONGEST_WINDOW_S = 0.05, 60
_ANSWERS_WITHIN_S = 60.0


class Attach:
    """The verb ``attach``."""

    name = "attach"
    help = "a running process that whystall did not start: what class of cause its time goes to"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""
        parser.add_argument("pid", type=int, metavar="PID", help="the process, as ps and nvidia-smi number it")
        parser.add_argument("--seconds", type=float, default=8.0, metavar="S", help="how long to watch (8)")
        parser.add_argument("--json", action="store_true", help="print what was found as JSON")
        parser.add_argument(
            "--window",
            type=float,
            metavar="S",
            help="instead, let torch's own profiler record this many seconds in the job and report on them; the job "
            "must have been started with KINETO_USE_DAEMON=1",
        )
        parser.add_argument("-o", "--output", metavar="DIR", help="where the window's trace goes (attached-PID)")

    def run(self, options: Namespace, console: Console) -> int:
        """Watches, and prints the observations; 0."""
        if not sys.platform.startswith("linux"):
            raise UsageError("`whystall attach` reads /proc, which only Linux has")
        if not _LEAST_S <= options.seconds <= _MOST_S:
            raise UsageError(f"--seconds wants {_LEAST_S} to {_MOST_S}, not {options.seconds:g}")
        if options.window is not None:
            return _record(options, console)
        if options.output is not None:
            raise UsageError("-o says where a window goes: add --window")
        from whystall.live.attach import attach
        from whystall.live.devices import device_facts, open_devices, package
        from whystall.live.kinds import kind_of
        from whystall.live.processes import require
        from whystall.live.rhythm import step_seconds
        from whystall.live.stacks import PER_SECOND, spy
        from whystall.live.telling import as_data, beforehand, told
        from whystall.live.verdict import verdict_of

        os.nice(_LOW_PRIORITY)
        program = spy()
        require(options.pid)
        # Limits come before the observation, so that the user need not wait to learn them.
        for line in beforehand(options.pid, options.seconds, stacks=program is not None):
            console.note(line)
        found = attach(options.pid, options.seconds, program=program)
        verdict = verdict_of(found.seen, found.line_of) if found.seen.ticks else None
        kinds = [kind_of(stack, found.line_of) for stack in found.seen.ticks]
        step_s = step_seconds(kinds, PER_SECOND)
        devices = device_facts(open_devices(options.pid), package())
        if options.json:
            import json

            console.result(json.dumps(as_data(found.seen, verdict, step_s, devices), indent=1))
        else:
            console.result("\n".join(told(found.seen, verdict, step_s, devices)))
        console.next("whystall run SCRIPT, to have the causes named and what mending them is worth")
        return 0


def _record(options: Namespace, console: Console) -> int:
    """Has the process record a window, and reports on it; 0. Raises `InputError` where none comes."""
    import whystall
    from whystall.cli.rendering import render
    from whystall.live.on_demand import window
    from whystall.live.processes import require

    if not _SHORTEST_WINDOW_S <= options.window <= _LONGEST_WINDOW_S:
        raise UsageError(f"--window wants {_SHORTEST_WINDOW_S} to {_LONGEST_WINDOW_S} seconds, not {options.window:g}")
    require(options.pid)
    folder = Path(options.output or f"attached-{options.pid}")
    console.note(f"Asking process {options.pid} for a window of {options.window:g} s; it looks every few seconds.")
    trace = window(options.pid, options.window, folder, within_s=_ANSWERS_WITHIN_S)
    console.result(render(whystall.analyze(trace, cache=False), "terminal", whole=console.verbose).rstrip())
    console.next(f"whystall report {trace}")
    return 0
