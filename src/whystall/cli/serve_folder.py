"""The folder of a run that ``whystall serve`` records: how ``run`` and ``watch`` begin it, end it and report on it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from whystall._version import __version__
from whystall.cli import inputs, output
from whystall.disk.writing import Over
from whystall.errors import UsageError

if TYPE_CHECKING:
    from argparse import Namespace

    from whystall.cli.console import Console
    from whystall.serving.outcome import Outcome

_USUAL_S = "1"


class RunFolder:
    """A folder that this process takes for a run of ``program``: ``-o``, or one of its own. Raises ``UsageError``."""

    def __init__(self, options: Namespace, program: str) -> None:
        from whystall.run_folder.alive import this_process
        from whystall.run_folder.claim import claim
        from whystall.run_folder.description import RunDescription, encode
        from whystall.run_folder.layout import folder_for

        if len(options.output) > 1:
            raise UsageError(f"`serve {options.action}` takes one -o: the folder of the run")
        chosen = options.output[0] if options.output else None
        self.path: Path = folder_for("serve", chosen, now=time.localtime(), environment={})
        self._running = RunDescription(
            whystall=__version__,
            kind="command",
            command=program,
            exit_code=None,
            began_unix_ns=time.time_ns(),
            schedule=None,
            process=this_process(),
        )
        claim(self.path, force=options.force, since_s=None, marker=encode(self._running))

    def end(self, exit_code: int) -> None:
        """Writes that the run has ended."""
        import msgspec

        from whystall.run_folder import layout
        from whystall.run_folder.description import encode

        ended = msgspec.structs.replace(self._running, exit_code=exit_code, ended_unix_ns=time.time_ns())
        output.place(self.path / layout.RUN_JSON, lambda file: file.write(encode(ended)), over=Over.OUR_OWN)

    def text(self, width: int) -> str:
        """The report on the files so far. Raises ``InputError`` where none is of a server that served."""
        from whystall.report.document import as_text
        from whystall.report.serving_text import serving_document

        return as_text(serving_document(self._outcome()), width)

    def json(self) -> str:
        """The same as JSON."""
        from whystall.serving.encoding import as_json
        from whystall.serving.outcome import SCHEMA

        return as_json(self._outcome(), SCHEMA)

    def name_next(self, console: Console) -> None:
        """Names the command that adds the file of the load's client."""
        quoted = inputs.shell_quote([str(self.path)])
        console.next(f"whystall serve report {quoted} RESULT, the file of the load's client")

    def _outcome(self) -> Outcome:
        from whystall.serving.outcome import explain_run

        return explain_run([self.path])


def interval(text: str | None) -> float:
    """The seconds between two readings of ``/metrics``. Raises ``UsageError``."""
    from whystall.serving.recording.scrape import FASTEST_S

    return seconds("--every", text or _USUAL_S, round(FASTEST_S, 2), 3600)


def seconds(flag: str, text: str, least: float, most: float) -> float:
    """The seconds that an option names. Raises ``UsageError`` outside of the bounds."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not least <= found <= most:
        raise UsageError(f"{flag} takes seconds from {least:g} to {most:g}, not {text}")
    return found
