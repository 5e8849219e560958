"""``whystall serve watch``: follows a server that it did not start, by its ``/metrics`` alone, and reports on it."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from whystall.cli import inputs, output, serve_run
from whystall.disk.writing import Over
from whystall.errors import InputError, UsageError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from whystall.cli.console import Console
    from whystall.serving.outcome import Outcome
    from whystall.serving.recording.scrape import Endpoint, Scrape

_OLD = 5  # intervals without a reading after which a report says so


def run(options: Namespace, console: Console) -> int:
    """Prints a report every so often and when it ends: 0. Raises ``InputError`` where nothing was read."""
    import msgspec

    from whystall.run_folder import layout
    from whystall.run_folder.claim import claim
    from whystall.run_folder.description import encode
    from whystall.serving.recording.own_lines import OwnLines
    from whystall.serving.recording.scrape import Scrape

    endpoint = _endpoint(options.paths)
    every_s = serve_run.interval(options.every)
    report_s = _seconds("--report-every", options.report_every)
    until = None if options.seconds is None else time.monotonic() + _seconds("--for", options.seconds)
    folder = serve_run.folder_of(options)
    running = serve_run.describe(["serve"])
    claim(folder, force=options.force, since_s=None, marker=encode(running))
    scrape = Scrape(folder, endpoint, every_s, OwnLines(steps=False), since_s=0.0)
    console.note(f"whystall: reads {options.paths[0]} into {folder}; Ctrl+C ends it")
    with scrape.running(), _terminable():
        try:
            _follow(scrape, folder, report_s, until, options, console)
        except KeyboardInterrupt:
            console.note("")
    ended = msgspec.structs.replace(running, exit_code=0, ended_unix_ns=time.time_ns())
    output.place(folder / layout.RUN_JSON, lambda file: file.write(encode(ended)), over=Over.OUR_OWN)
    if not scrape.readings:
        why = scrape.failure or "is not there: nothing answers at this address"
        raise InputError(f"{options.paths[0]}: /metrics {why}")
    _warn(scrape, every_s, console)
    _print(folder, options, console, last=True)
    console.next(f"whystall serve report {inputs.shell_quote([str(folder)])} RESULT, the file of the load's client")
    return 0


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends it as Ctrl+C does, with a report: a shell lets jobs in the background ignore SIGINT."""

    def end(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _follow(
    scrape: Scrape, folder: Path, report_s: float, until: float | None, options: Namespace, console: Console
) -> None:
    """Reports at intervals, until the time is over."""
    every_s = float(options.every)
    while True:
        left = report_s if until is None else min(report_s, until - time.monotonic())
        if left <= 0:
            return
        time.sleep(left)
        if until is not None and time.monotonic() >= until:
            return
        _warn(scrape, every_s, console)
        if scrape.readings:
            scrape.save()
            _print(folder, options, console, last=False)


def _warn(scrape: Scrape, every_s: float, console: Console) -> None:
    """Says what stands in the way of readings."""
    if scrape.damage is not None:
        console.note(f"whystall: {scrape.damage}")
    now = time.monotonic()
    if scrape.last_s is None:
        console.note(f"whystall: /metrics {scrape.failure or 'is not there yet: nothing answers at this address'}")
    elif now - scrape.last_s > _OLD * every_s:
        console.note(f"whystall: the last reading is {now - scrape.last_s:.0f} s old: the server does not answer")


def _print(folder: Path, options: Namespace, console: Console, *, last: bool) -> None:
    """Prints the report on all readings so far; as JSON only the last one."""
    from whystall.report.document import as_text
    from whystall.report.serving_text import serving_document
    from whystall.serving.outcome import as_json, explain_run

    if options.json and not last:
        return
    found: Outcome = explain_run([folder])
    if options.json:
        console.result(as_json(found))
    else:
        console.result(f"{time.strftime('%H:%M:%S')}\n{as_text(serving_document(found), console.width)}")


def _endpoint(words: list[str]) -> Endpoint:
    """The address. Raises ``UsageError`` where it is none."""
    from urllib.parse import urlsplit

    from whystall.serving.recording.scrape import Endpoint

    if len(words) != 1:
        raise UsageError("`serve watch` takes one address, such as http://127.0.0.1:8000")
    text = words[0] if "://" in words[0] else f"http://{words[0]}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username is not None:
        raise UsageError(f"{words[0]!r} is no address of a server: give one such as http://127.0.0.1:8000")
    tls = parts.scheme == "https"
    path = parts.path.rstrip("/")
    path = path if path.endswith("/metrics") else f"{path}/metrics"
    if not (path.isascii() and path.isprintable()) or " " in path:
        raise UsageError(f"{words[0]!r} is no address of a server: its path holds other than printable ASCII")
    return Endpoint(parts.hostname, port or (443 if tls else 80), path, tls)


def _seconds(flag: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 86_400 * 30:
        raise UsageError(f"{flag} takes seconds from 1 to 2592000, not {text}")
    return seconds
