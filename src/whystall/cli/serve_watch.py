"""``whystall serve watch``: follows a server that it did not start, by its ``/metrics`` alone, and reports on it."""

from __future__ import annotations

import contextlib
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from whystall.cli import serve_flags
from whystall.cli.serve_folder import RunFolder, interval, seconds
from whystall.errors import InputError, UsageError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from whystall.cli.console import Console
    from whystall.serving.recording.scrape import Endpoint, Scrape

wait = time.sleep

_OLD: Final = 5  # intervals without a reading after which a report says so
_USUAL_REPORT_S: Final = "60"
_LONGEST_S: Final = 86_400 * 30
_PORTS: Final = {"http": 80, "https": 443}


def run(options: Namespace, console: Console) -> int:
    """Prints a report every so often and when it ends: 0. Raises ``InputError`` where nothing was read."""
    from whystall.serving.recording.own_lines import OwnLines
    from whystall.serving.recording.scrape import Scrape

    endpoint = _endpoint(options.paths)
    every_s = interval(options.every)
    report_s = seconds("--report-every", options.report_every or _USUAL_REPORT_S, 1, _LONGEST_S)
    ends = serve_flags.value_of(options, "--for")
    until = None if ends is None else time.monotonic() + seconds("--for", ends, 1, _LONGEST_S)
    folder = RunFolder(options, "serve")
    scrape = Scrape(folder.path, endpoint, every_s, OwnLines(steps=False), since_s=0.0)
    watch = Watch(scrape, folder, every_s, console, as_json=bool(options.json))
    console.note(f"whystall: reads {options.paths[0]} into {folder.path}; Ctrl+C ends it")
    with scrape.running(), _terminable():
        try:
            watch.follow(report_s, until)
        except KeyboardInterrupt:
            console.note("")
    folder.end(0)
    if not scrape.readings:
        why = scrape.failure or "is not there: nothing answers at this address"
        raise InputError(f"{options.paths[0]}: /metrics {why}")
    watch.warn()
    watch.report(last=True)
    folder.name_next(console)
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


@dataclass(frozen=True, slots=True)
class Watch:
    """The readings of a server and the reports on them; as JSON only the last one is printed."""

    scrape: Scrape
    folder: RunFolder
    every_s: float
    console: Console
    as_json: bool

    def follow(self, report_s: float, until: float | None) -> None:
        """Reports at intervals, until the time is over."""
        while True:
            left = report_s if until is None else min(report_s, until - time.monotonic())
            if left <= 0:
                return
            wait(left)
            if until is not None and time.monotonic() >= until:
                return
            self.warn()
            if self.scrape.readings:
                self.scrape.save()
                self.report(last=False)

    def warn(self) -> None:
        """Says what stands in the way of readings."""
        scrape = self.scrape
        if scrape.damage is not None:
            self.console.note(f"whystall: {scrape.damage}")
        if scrape.last_s is None:
            why = scrape.failure or "is not there yet: nothing answers at this address"
            self.console.note(f"whystall: /metrics {why}")
            return
        age_s = time.monotonic() - scrape.last_s
        if age_s > _OLD * self.every_s:
            why = scrape.failure or "has not answered since"
            self.console.note(f"whystall: the last reading is {age_s:.0f} s old: /metrics {why}")

    def report(self, *, last: bool) -> None:
        """Prints the report on all readings so far."""
        if not self.as_json:
            self.console.result(f"{time.strftime('%H:%M:%S')}\n{self.folder.text(self.console.width)}")
        elif last:
            self.console.result(self.folder.json())


def _endpoint(words: list[str]) -> Endpoint:
    """The address. Raises ``UsageError`` where it is none."""
    from whystall.live.address import parse_address
    from whystall.serving.recording.scrape import Endpoint

    if len(words) != 1:
        raise UsageError("`serve watch` takes one address, such as http://127.0.0.1:8000")
    text = words[0] if "://" in words[0] else f"http://{words[0]}"
    scheme, host, port, path = parse_address(text, _PORTS, "http://HOST:PORT")
    path = path.rstrip("/")
    return Endpoint(host, port, path if path.endswith("/metrics") else f"{path}/metrics", scheme == "https")
