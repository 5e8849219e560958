"""``whystall serve run``: starts a vLLM server as it is, records it from outside, and reports when it stops."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from whystall.cli import serve_folder
from whystall.errors import InputError, UsageError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

    from whystall.cli.console import Console
    from whystall.cli.serve_folder import RunFolder
    from whystall.serving.recording.command import ServerCommand
    from whystall.serving.recording.plan import Additions
    from whystall.serving.recording.spans import SpanReceiver


def run(words: Sequence[str], options: Namespace, console: Console) -> int:
    """The exit code of the server, after its report; ``-signal`` where a signal ended it."""
    from whystall.capture.launch import run_command
    from whystall.cli.ending import SIGNALLED
    from whystall.serving.recording.command import server_command

    every_s = serve_folder.interval(options.every)
    command = server_command(words)
    added = _additions(words, command, unchanged=bool(options.no_flags))
    folder = serve_folder.RunFolder(options, Path(words[0]).name)
    with _Recording(folder.path, None if command is None else command.port, every_s, added) as recording:
        flags = added.flags(recording.endpoint)
        console.note(f"whystall: records into {folder.path}{_ending(flags, added)}")
        ended = run_command(
            (*words, *flags),
            os.environ | recording.variables,
            recording.meanwhile,
            stdout=recording.copy.stdout,
            stderr=recording.copy.stderr,
        )
    code = ended if ended >= 0 else SIGNALLED - ended
    try:
        folder.end(code)
        if code == 0 or recording.has_served:
            _report(folder, recording, console)
    except Exception as error:  # noqa: BLE001 - the server is done; its exit code must not become ours
        what = f"{type(error).__name__}: {error}"
        console.error(f"the server was not affected, but its report could not be made ({what})")
    return ended


class _Recording:
    """The copy of the output, the readings of ``/metrics`` and the receiver of spans of one server."""

    def __init__(self, folder: Path, port: int | None, every_s: float, added: Additions) -> None:
        from whystall.run_folder.layout import SERVER_LOG, SERVER_SPANS
        from whystall.serving.recording.output_copy import OutputCopy
        from whystall.serving.recording.own_lines import OwnLines
        from whystall.serving.recording.scrape import Scrape, on_loopback
        from whystall.serving.recording.spans import SpanReceiver

        self.own = OwnLines(steps=added.steps)
        self.scrape = Scrape(folder, on_loopback(port), every_s, self.own, time.time())
        self._receiver: SpanReceiver | None = None
        try:
            self.copy = OutputCopy(folder / SERVER_LOG, self.own)
        except OSError as error:
            raise UsageError(f"cannot write {folder / SERVER_LOG}: {error.strerror or error}") from None
        if added.spans:
            with contextlib.suppress(OSError):  # without a port for it there are no spans
                self._receiver = SpanReceiver(folder / SERVER_SPANS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.copy.close()
        if self._receiver is not None:
            self._receiver.close()

    @property
    def endpoint(self) -> str | None:
        """Where the server sends its spans."""
        return None if self._receiver is None else self._receiver.endpoint

    @property
    def variables(self) -> dict[str, str]:
        """Variables for the server's environment, so that it sends its spans here."""
        return {} if self._receiver is None else self._receiver.variables

    @contextlib.contextmanager
    def meanwhile(self, _end: Callable[[], None]) -> Iterator[None]:
        """Records while the server runs."""
        receiving = contextlib.nullcontext() if self._receiver is None else self._receiver.running()
        with receiving, self.copy.copying(), self.scrape.running():
            yield

    @property
    def has_served(self) -> bool:
        """Whether there is anything to report: a step or a reading."""
        return self.scrape.readings > 0 or self.own.seen_steps

    @property
    def damages(self) -> Iterator[str]:
        """Sentences on incomplete files."""
        from whystall.run_folder.layout import SERVER_LOG

        if self.copy.damage is not None:
            yield f"{SERVER_LOG} {self.copy.damage}"
        if self.scrape.damage is not None:
            yield self.scrape.damage
        if self._receiver is not None and self._receiver.damage is not None:
            yield self._receiver.damage
        if not self.scrape.readings:
            why = self.scrape.failure or "was not there: no port of 127.0.0.1 answered, or the server stopped at once"
            yield f"/metrics {why}"


def _additions(words: Sequence[str], command: ServerCommand | None, *, unchanged: bool) -> Additions:
    from whystall.serving.recording.installed import installed_for
    from whystall.serving.recording.plan import Additions, additions

    if unchanged:
        return Additions()
    return additions(words, command, None if command is None else installed_for(command), os.environ)


def _ending(flags: Sequence[str], added: Additions) -> str:
    """The end of the sentence on what is recorded: the flags that were added, and why others were not."""
    names = " and ".join(flag for flag in flags if flag.startswith("--"))
    return (f", with {names}" if names else "") + (f"; {added.reason}" if added.reason else "")


def _report(folder: RunFolder, recording: _Recording, console: Console) -> None:
    """Prints the report on stderr: stdout belongs to the server."""
    for damage in recording.damages:
        console.note(f"whystall: {damage}")
    try:
        text = folder.text(console.width)
    except InputError:
        console.note(f"whystall: nothing in {folder.path} is of a vLLM server that served: nothing to report")
        return
    console.note(text.rstrip())
    folder.name_next(console)
