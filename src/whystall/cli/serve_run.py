"""``whystall serve run``: starts a vLLM server as it is, records it from outside, and reports when it stops."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from whystall._version import __version__
from whystall.cli import inputs, output
from whystall.disk.writing import Over
from whystall.errors import UsageError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator, Sequence

    from whystall.cli.console import Console
    from whystall.run_folder.description import RunDescription
    from whystall.serving.recording.command import ServerCommand
    from whystall.serving.recording.output_copy import OutputCopy
    from whystall.serving.recording.own_lines import OwnLines
    from whystall.serving.recording.scrape import Scrape

_RECORDING_FLAGS = ("--enable-logging-iteration-details",)
"""The flags that are added. `docs/how-to/serving.md` says why others are not."""
_WITHOUT_STATS = "--disable-log-stats"


def run(words: Sequence[str], options: Namespace, console: Console) -> int:
    """The exit code of the server, after its report; ``-signal`` where a signal ended it."""
    import msgspec

    from whystall.capture.launch import run_command
    from whystall.cli.ending import SIGNALLED
    from whystall.run_folder import layout
    from whystall.run_folder.claim import claim
    from whystall.run_folder.description import encode
    from whystall.serving.recording.own_lines import OwnLines
    from whystall.serving.recording.scrape import Scrape

    every_s = _interval(options.every)
    command = _server_command(words)
    flags, sentence = _flags(command, words, unchanged=options.no_flags)
    folder = _folder(options)
    running = _description(words)
    claim(folder, force=options.force, since_s=None, marker=encode(running))
    own = OwnLines(steps=bool(flags))
    scrape = Scrape(folder, None if command is None else command.port, every_s, own, time.time())
    copy = _copy(folder / layout.SERVER_LOG, own)
    console.note(f"whystall: records into {folder}{sentence}")

    @contextlib.contextmanager
    def recording(_end: Callable[[], None]) -> Iterator[None]:
        with copy.copying(), scrape.running():
            yield

    try:
        ended = run_command((*words, *flags), os.environ, recording, stdout=copy.stdout, stderr=copy.stderr)
    finally:
        copy.close()
    code = ended if ended >= 0 else SIGNALLED - ended
    try:
        described = msgspec.structs.replace(running, exit_code=code, ended_unix_ns=time.time_ns())
        output.place(folder / layout.RUN_JSON, lambda file: file.write(encode(described)), over=Over.OUR_OWN)
        if code == 0 or scrape.readings or own.seen_steps:
            _report(folder, scrape, copy, console)
    except Exception as error:  # noqa: BLE001 - the server is done; its exit code must not become ours
        console.error(
            f"the server was not affected, but its report could not be made ({type(error).__name__}: {error})"
        )
    return ended


def _interval(text: str) -> float:
    from whystall.serving.recording.scrape import FASTEST_S

    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not FASTEST_S - 0.01 <= seconds <= 3600:
        raise UsageError(f"--every takes seconds from 0.33 to 3600, not {text}")
    return seconds


def _server_command(words: Sequence[str]) -> ServerCommand | None:
    from whystall.serving.recording.command import server_command

    return server_command(words)


def _flags(command: ServerCommand | None, words: Sequence[str], *, unchanged: bool) -> tuple[tuple[str, ...], str]:
    """The flags to add, and the end of the sentence that says so."""
    from whystall.serving.recording.installed import flags_of

    wanted = tuple(flag for flag in _RECORDING_FLAGS if command is None or not command.has(flag))
    if unchanged or not wanted:
        return (), ""
    names = " ".join(wanted)
    if command is None:
        if any(name in word for word in words for name in _RECORDING_FLAGS):  # within bash -c, or behind docker run
            return (), ""
        return (), f"; {names} is not added, since the command is no `vllm serve`: add it for a report on engine steps"
    known = flags_of(command)
    if known is None:
        return (), f"; {names} is not added, since the vLLM of {command.program} was not found: add it if yours has it"
    present = tuple(flag for flag in wanted if flag in known)
    if not present:
        return (), f"; {names} is not added, since this version of vLLM has no such flag"
    return present, f", with {' '.join(present)}"


def _folder(options: Namespace) -> Path:
    """The folder: ``-o``, or one of its own."""
    from whystall.run_folder.layout import folder_for

    if len(options.output) > 1:
        raise UsageError("`serve run` takes one -o: the folder of the run")
    chosen = options.output[0] if options.output else None
    return folder_for("serve", chosen, now=time.localtime(), environment={})


def _description(words: Sequence[str]) -> RunDescription:
    from whystall.run_folder.alive import this_process
    from whystall.run_folder.description import RunDescription

    return RunDescription(
        whystall=__version__,
        kind="command",
        command=Path(words[0]).name,
        exit_code=None,
        began_unix_ns=time.time_ns(),
        schedule=None,
        process=this_process(),
    )


def _copy(path: Path, own: OwnLines) -> OutputCopy:
    from whystall.serving.recording.output_copy import OutputCopy

    try:
        return OutputCopy(path, own)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None


def _report(folder: Path, scrape: Scrape, copy: OutputCopy, console: Console) -> None:
    """Prints the report on stderr: stdout belongs to the server."""
    from whystall.errors import InputError
    from whystall.report.document import as_text
    from whystall.report.serving_text import serving_document
    from whystall.run_folder.layout import SERVER_LOG
    from whystall.serving.outcome import explain_run

    if copy.damage is not None:
        console.note(f"whystall: {SERVER_LOG} {copy.damage}")
    if scrape.damage is not None:
        console.note(f"whystall: {scrape.damage}")
    if not scrape.readings:
        console.note(f"whystall: /metrics was not read: {_why_no_metrics(scrape)}")
    try:
        found = explain_run([folder])
    except InputError:
        console.note(f"whystall: nothing in {folder} is of a vLLM server that served: nothing to report")
        return
    console.note(as_text(serving_document(found), console.width).rstrip())
    console.next(
        f"with the result of the load's client: whystall serve report {inputs.shell_quote([str(folder)])} RESULT"
    )


def _why_no_metrics(scrape: Scrape) -> str:
    if scrape.failure is not None:
        return f"it {scrape.failure}"
    return "no port of 127.0.0.1 answered, or the server stopped at once"
