"""``whystall tune``: settings found by measurement, without a change of the code."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from whystall.cli import launching, output
from whystall.cli.verify import loss_pattern
from whystall.errors import UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from whystall.cli.console import Console
    from whystall.report.document import Document
    from whystall.verify.tune.results import Tuning

_INTERRUPTED = 130


class Tune:
    """The verb ``tune``."""

    name = "tune"
    help = "find settings by measurement: loader workers, threads, optimizer, allocator, one argument of yours"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""
        parser.usage = "whystall tune [options] SCRIPT [ARGS...] | -m MODULE [ARGS...] | -- COMMAND..."
        parser.add_argument("-o", "--output", metavar="DIR", help="where runs are kept, to go on from")
        parser.add_argument(
            "--knob",
            metavar="'--ARG=A,B,C'",
            help="an argument of the command to try as well: --batch-size=8,16",
        )
        parser.add_argument("--steps", type=int, default=60, metavar="N", help="steps of each run (60)")
        parser.add_argument("--trials", type=int, default=14, metavar="N", help="settings to try at most (14)")
        parser.add_argument("--pairs", type=int, default=6, metavar="N", help="pairs of runs of a trial at most (6)")
        parser.add_argument("--by", choices=("mean", "median"), default="mean", help="which step decides (mean)")
        parser.add_argument("--loss", metavar="REGEX", help="where losses are in the output; its group is the number")
        parser.add_argument(
            "--tolerance", type=float, default=0.01, metavar="SHARE", help="how far losses may differ (0.01)"
        )
        parser.add_argument("--timeout", type=float, metavar="S", help="a run that takes so long has failed")
        parser.add_argument("--json", action="store_true", help="print as JSON (schema whystall.tune/1)")
        output.add_force(parser)
        launching.add_command(parser)

    def run(self, options: Namespace, console: Console) -> int:
        """Prints the trials and the settings; 0."""
        from whystall.report.document import as_text
        from whystall.report.document_page import as_page
        from whystall.run_folder.layout import TUNE_HTML, folder_for
        from whystall.verify.tune.measurer import Measurer, knob_of
        from whystall.verify.tune.search import search

        _check(options)
        launch = launching.launch_of_words(options)
        folder = folder_for(f"{launch.name}-tune", options.output, now=time.localtime(), environment={})
        knob = None if options.knob is None else knob_of(options.knob, launch.command)
        measurer = Measurer(
            launch.command,
            Path(folder),
            knob=knob,
            loss=loss_pattern(options.loss),
            steps=options.steps,
            statistic=options.by,
            timeout_s=options.timeout,
            progress=console.detail,
        )
        known = measurer.open(force=options.force)
        if known:
            console.note(f"going on after {known} runs that {folder} holds")
        try:
            found = search(
                measurer,
                knob=knob,
                most_trials=options.trials,
                pairs=options.pairs,
                tolerance=options.tolerance,
                progress=console.note,
            )
        except KeyboardInterrupt:
            console.error(f"interrupted; to go on: whystall tune -o {folder} with the same options and command")
            return _INTERRUPTED
        measurer.end(found)
        printed, kept = _documents(found, measurer.to_keep(found.settings))
        console.result(_json(found) if options.json else as_text(printed, console.width))
        page = Path(folder) / TUNE_HTML
        output.write_own(page, as_page(kept))
        console.note(f"wrote {page}")
        console.next("whystall verify --before COMMAND --after COMMAND, once the code is changed")
        return 0


def _check(options: Namespace) -> None:
    for name, least in (("steps", 12), ("trials", 1), ("pairs", 3)):
        if getattr(options, name) < least:
            raise UsageError(f"--{name} must be at least {least}, not {getattr(options, name)}")
    if not options.tolerance >= 0:  # a comparison that also refuses nan
        raise UsageError(f"--tolerance must be at least 0, not {options.tolerance:g}")
    if options.timeout is not None and not options.timeout > 0:
        raise UsageError(f"--timeout must be above 0, not {options.timeout:g}")


def _json(found: Tuning) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(found), indent=1).decode()


def _documents(found: Tuning, words: list[str]) -> tuple[Document, Document]:
    """The printed document, and the one for files."""
    from whystall.report.tune_text import tuning_document
    from whystall.verify.tune.advice import final_command, lines_to_change

    lines = lines_to_change(found.settings, found.seen)
    to_run = final_command(words, found.settings)
    return tuning_document(found, to_run, lines), tuning_document(found, None, lines)
