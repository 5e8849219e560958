"""``whystall fix``: edits that remove causes of slowness, each tried in a copy, kept or rejected."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from whystall.cli import launching
from whystall.errors import InputError, UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from whystall.capture.launch import Launch
    from whystall.cli.console import Console
    from whystall.remedies.chain import Chain
    from whystall.remedies.copies import Workplace
    from whystall.remedies.program import Program
    from whystall.remedies.results import Fixes
    from whystall.remedies.runs import Runs
    from whystall.remedies.store import Store

_INTERRUPTED: Final = 130
_REJECTED: Final = 1
_LARGEST_PATCH: Final = 16 << 20
_BUDGET: Final = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)?")


class Fix:
    """The verb ``fix``."""

    name = "fix"
    help = "make the change: edits of your program, tried in a copy, each kept or rejected by measurement"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""
        parser.usage = "whystall fix [options] RUN | SCRIPT [ARGS...] | -m MODULE [ARGS...] | -- COMMAND..."
        parser.add_argument(
            "-o", "--output", metavar="DIR", help="where attempts and the patch are kept (whystall-runs/NAME-fix)"
        )
        parser.add_argument("--apply", action="store_true", help="write what was kept into your files")
        parser.add_argument("--budget", default="20m", metavar="TIME", help="begin no edit after this time (20m)")
        parser.add_argument("--most", type=int, default=5, metavar="N", help="edits to try at most (5)")
        parser.add_argument("--steps", type=int, default=60, metavar="N", help="steps of each run (60)")
        parser.add_argument(
            "--allow",
            action="append",
            default=[],
            choices=("numerics", "side-effects"),
            help="numerics: also try edits that may change what is computed; side-effects: go on where the job writes "
            "to files of yours that the copy only links to",
        )
        parser.add_argument("--patch", metavar="FILE", help="prove this change in place of edits: kept or rejected")
        parser.add_argument("--timeout", type=float, metavar="S", help="a run that takes so long has failed")
        parser.add_argument("--json", action="store_true", help="print as JSON (schema whystall.fix/1)")
        launching.add_command(parser)

    def run(self, options: Namespace, console: Console) -> int:
        """Prints the attempts and the patch; 1 where ``--patch`` was rejected, else 0."""
        from whystall._fixing import diagnose
        from whystall.remedies.copies import program_of, workplace
        from whystall.remedies.runs import Runs
        from whystall.remedies.store import Store
        from whystall.verify.measure import ended_by_signals

        budget_s = _checked(options)
        launch = _launch(options)
        place = workplace(Path.cwd())
        program = program_of(place, launch.command)
        store = Store(_folder(launch, options))
        runs = Runs(
            place,
            diagnose,
            steps=options.steps,
            side_effects="side-effects" in options.allow,
            timeout_s=options.timeout,
        )
        with store.held(), ended_by_signals(), runs:
            chain = _chain(runs, store, options, budget_s, console)
            try:
                found = _follow(chain, place, program, options)
            except KeyboardInterrupt:
                console.error("interrupted: your files were not changed; the same command continues")
                return _INTERRUPTED
            path = None if options.patch is not None else _kept(store, chain, program, found)
            _print(found, path, place, options, console)
            if options.apply and found.patch:
                _apply(place, program, chain, console)
        return _REJECTED if options.patch is not None and not found.patch else 0


def _checked(options: Namespace) -> float:
    """The budget in seconds. Raises ``UsageError`` for options without sense."""
    found = _BUDGET.fullmatch(options.budget)
    if found is None:
        raise UsageError(f"--budget takes a time such as 90s, 20m or 1h, not {options.budget!r}")
    for name, least in (("steps", 12), ("most", 1)):
        if getattr(options, name) < least:
            raise UsageError(f"--{name} must be at least {least}, not {getattr(options, name)}")
    if options.timeout is not None and not options.timeout > 0:
        raise UsageError(f"--timeout must be above 0, not {options.timeout:g}")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600, None: 1}[found[2]]


def _launch(options: Namespace) -> Launch:
    """The command: as given, or that of a run folder."""
    from whystall.capture.launch import launch_of
    from whystall.run_folder.description import command_line, is_run

    words = options.command
    if options.module is not None or len(words) != 1 or not is_run(Path(words[0])):
        return launching.launch_of_words(options)
    line = command_line(Path(words[0]))
    if line is None or line.endswith(" ARGS"):
        raise UsageError(f"{words[0]} does not hold the whole command: give it, whystall fix -- COMMAND ...")
    words = shlex.split(line)
    if words[0] != "python":
        return launch_of(words, is_command=True)
    is_module = words[1] == "-m"  # by the Python that runs this, as `whystall run` does
    return launch_of(words[2 if is_module else 1 :], is_module=is_module)


def _folder(launch: Launch, options: Namespace) -> Path:
    """The folder of a program's attempts: the same each time, so that it goes on from them."""
    from whystall.run_folder.layout import RUNS, safe_name

    return Path(options.output) if options.output is not None else Path(RUNS) / f"{safe_name(launch.name)}-fix"


def _chain(runs: Runs, store: Store, options: Namespace, budget_s: float, console: Console) -> Chain:
    from whystall._fixing import statistic_of
    from whystall.remedies.chain import Chain

    return Chain(
        runs,
        statistic_of,
        most=options.most,
        budget_s=budget_s,
        numerics="numerics" in options.allow,
        known=store.attempts(),
        keep=store.keep,
        progress=lambda text: console.note(f"whystall: {text}"),
    )


def _follow(chain: Chain, place: Workplace, program: Program, options: Namespace) -> Fixes:
    from whystall.disk import reading
    from whystall.remedies.store import patched

    if options.patch is None:
        return chain.follow(program)
    file = Path(options.patch)
    try:
        text = reading.content(file, _LARGEST_PATCH)
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from None
    return chain.judge(program, patched(place, program, text, str(file)), file.name)


def _print(found: Fixes, path: Path | None, place: Workplace, options: Namespace, console: Console) -> None:
    import msgspec

    from whystall.report.document import as_text
    from whystall.report.fix_text import fix_document

    command = shlex.join(_typed(found.command)) if found.command else None
    apply = [] if path is None else [f"git -C {shlex.quote(str(place.root))} apply {shlex.quote(str(path.resolve()))}"]
    if options.json:
        console.result(msgspec.json.format(msgspec.json.encode(found), indent=1).decode())
    else:
        console.result(as_text(fix_document(found, apply, command), console.width))
    if path is not None:
        console.note(f"wrote {path}")
        if not options.apply:
            console.next(apply[0])


def _kept(store: Store, chain: Chain, first: Program, found: Fixes) -> Path | None:
    """Writes the result of a loop; the path of its patch."""
    from whystall.remedies.program import patch
    from whystall.report.fix_text import pull_request

    text = "" if chain.program is None else patch(first, chain.program)
    return store.end(found, text.encode("utf-8", "surrogateescape"), pull_request(found))


def _typed(command: list[str]) -> list[str]:
    return ["python" if word == sys.executable else word for word in command]


def _apply(place: Workplace, program: Program, chain: Chain, console: Console) -> None:
    from whystall.remedies.store import apply

    changed = chain.program.changed_from(program) if chain.program is not None else {}
    apply(place, program, changed)
    console.note(f"applied: {', '.join(sorted(changed))}")
