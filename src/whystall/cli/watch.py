"""``whystall watch``: the state of a job that `whystall run` started, while it runs."""

from __future__ import annotations

import os
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from whystall.cli import output
from whystall.cli.browser import add_serving, check_port
from whystall.disk.writing import Over
from whystall.errors import InputError, UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

    from whystall.analysis.pace import Pace
    from whystall.cli.console import Console
    from whystall.cli.live_page import LivePage
    from whystall.live.otlp import Collector
    from whystall.report.live_page import LiveJob
    from whystall.report.schema import Report
    from whystall.trace.following import Followed
    from whystall.vocabulary.metrics import Point

# The latest steps within this time are the pace, compared with the first ones within the same time: a few of the first
# steps may by chance be fast.
_LATELY_S: Final = 5.0
_FEWEST_FIRST: Final = 64
_AGAIN_S: Final = 15.0
# Reported again where steps have become this many times as long since.
_SAID_AGAIN: Final = 1.25
# Reported first where steps take longer by more than the pace's own scatter, in standard deviations, and longer than
# usual by this factor, too: at first they may have been quick. While that is not known yet, clearly longer.
_BEYOND: Final = 3.0
_ABOVE_USUAL: Final = 1.1
_CLEARLY: Final = 1.2
# Reported where other programs use this many cores, or enough to account for half of the lengthening: threads wait for
# each other, so that one without a core for a tenth of the time delays all for that time.
_OTHERS_BUSY: Final = 0.5
_OTHERS_SEEN: Final = 0.05
# Lengthening of computation is reported from this factor on: a machine's own pace differs by a tenth within minutes.
_WORTH_SAYING: Final = 1.25
_MOST_CHANGES: Final = 50
_LOW_PRIORITY: Final = 10
"""A tenth of a core where the job takes them all; at the lowest (19) a hundredth: a verdict takes seconds of it."""


class Watch:
    """The verb ``watch``."""

    name = "watch"
    help = "a job that is running: its pace, what slowed it, the verdict so far; as metrics, too"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""
        parser.add_argument("run_folder", metavar="RUN", help="the folder of a run that goes on, or has ended")
        parser.add_argument("--every", type=float, default=5.0, metavar="S", help="seconds between two looks (5)")
        parser.add_argument("--once", action="store_true", help="look once and end")
        parser.add_argument(
            "--metrics",
            metavar="FILE|otlp://HOST:PORT",
            help="with each look, write what Prometheus reads (node exporter's textfile collector), or send the same "
            "to a collector of OpenTelemetry (over HTTP, port 4318 unless another is named)",
        )
        parser.add_argument(
            "--page",
            action="store_true",
            help="serve what is seen as a page that this machine alone reaches; it stays when the job has ended",
        )
        add_serving(parser)
        parser.add_argument(
            "--no-windows", action="store_true", help="ask for no window to be recorded when the job slows down"
        )

    def run(self, options: Namespace, console: Console) -> int:
        """Prints changes, until the job ends; 0."""
        if not options.every >= 1:
            raise UsageError(f"--every must be at least 1, not {options.every:g}")
        if options.page and options.once:
            raise UsageError("--once ends after a look, and --page goes on to serve what is seen: choose one of them")
        check_port(options.port)
        from whystall.run_folder.description import is_run

        folder = Path(options.run_folder)
        if not is_run(folder):
            raise InputError(f"{folder}: no folder of a run (there is no run.json of whystall)")
        os.nice(_LOW_PRIORITY)  # beside the job
        watched = Watched(folder, console, windows=not options.no_windows, once=options.once)
        tell, close = _listener(options.metrics, console)
        page = _page(options, console)
        try:
            while True:
                ended = watched.look()
                tell(watched)
                if page is not None:
                    page.show(watched.job(ended=ended))
                if ended or options.once:
                    break
                time.sleep(options.every)
            if page is not None:
                page.stay()
        finally:
            if page is not None:
                page.close()
            close()
        return 0


def _page(options: Namespace, console: Console) -> LivePage | None:
    if not options.page:
        return None
    from whystall.cli.live_page import LivePage

    return LivePage(console, port=options.port, every_s=options.every, browser=not options.no_browser)


def _listener(metrics: str | None, console: Console) -> tuple[Callable[[Watched], None], Callable[[], None]]:
    """A function that takes the metrics with each look, and one that ends it."""
    if metrics is None:
        return lambda _watched: None, lambda: None
    from whystall.live.otlp import SCHEME, Collector
    from whystall.report.metrics import are_metrics

    if "://" not in metrics:
        path = Path(metrics)
        output.check_own(path, are_metrics)
        return partial(_write_metrics, path), lambda: None
    if not metrics.startswith(SCHEME):
        raise UsageError(f"--metrics takes a file or {SCHEME}HOST:PORT, no other scheme")
    collector = Collector(metrics, console.note)
    return partial(_send_metrics, collector), collector.close


class Watched:
    """A run folder as it was at the last look, and the reports on it."""

    def __init__(self, folder: Path, console: Console, *, windows: bool, once: bool = False) -> None:
        self._folder = folder
        self._console = console
        self._windows = windows
        self._once = once
        self._followed: dict[Path, Followed] = {}
        self._paces: dict[int, Pace] = {}
        self._slower: dict[int, float] = {}
        self._usual: dict[int, tuple[float, float] | None] = {}
        self._suspected: set[int] = set()
        self._traces = -1
        self._judged_at = 0.0
        self._ours_until = 0.0
        self._report: Report | None = None
        self._said = ""
        self._changes: deque[str] = deque(maxlen=_MOST_CHANGES)

    def look(self) -> bool:
        """Reads new lines, prints changes; returns whether the job has ended."""
        from whystall.run_folder.alive import has_ended
        from whystall.run_folder.layout import rank_files

        ended = has_ended(self._folder)
        for path in rank_files(self._folder, "samples"):
            self._follow(path)
        self._say_pace()
        self._say_slower(ended=ended)
        traces = len(rank_files(self._folder, "trace"))
        # of a job that became slow more is known with every sample
        again = bool(self._slower) and time.monotonic() - self._judged_at >= _AGAIN_S
        if traces != self._traces or ended or again:
            self._traces = traces
            self._say_verdict()
            self._judged_at = time.monotonic()
            # Until then we used a core ourselves.
            self._ours_until = self._judged_at + _LATELY_S
        if ended:
            self._say_change("the job has ended")
            self._console.next(f"whystall report {self._folder}")
        return ended

    def _follow(self, path: Path) -> None:
        from whystall.analysis.pace import pace_of
        from whystall.analysis.pace_changes import FEWEST
        from whystall.trace.following import Followed

        one = self._followed.setdefault(path, Followed(path))
        one.look()
        pace = pace_of(one.first(_LATELY_S, _FEWEST_FIRST), one.latest(_LATELY_S, FEWEST))
        if pace is not None:
            self._paces[one.rank] = pace
            self._usual[one.rank] = one.usual()

    def _say_pace(self) -> None:
        from whystall.cli.steps_so_far import stands_at
        from whystall.report.format import duration, share

        if not self._followed:
            self._console.result(f"no step has ended yet{stands_at(self._folder)}")
            return
        steps = max(one.steps for one in self._followed.values())
        text = f"step {steps:,}"
        if self._paces:
            rank, pace = max(self._paces.items(), key=lambda item: (item[1].median_ns, -item[0]))
            parts = sorted(pace.shares.items(), key=lambda item: -item[1])
            where = ", ".join(f"{part} {share(of)}" for part, of in parts if of >= 0.005)
            whose = f", rank {rank}'s" if len(self._paces) > 1 else ""
            text += f" · {duration(pace.median_ns)} each (the latest {pace.steps:,}{whose}) · {where}"
        self._console.result(text)

    def _say_slower(self, *, ended: bool) -> None:
        if time.monotonic() < self._ours_until and not ended:
            return
        for rank, pace in sorted(self._paces.items()):
            if not pace.slower:
                self._slower.pop(rank, None)
                self._suspected.discard(rank)
            elif self._is_surely(rank, pace, ended=ended) and pace.ratio > _SAID_AGAIN * self._slower.get(rank, 0.0):
                self._say_longer(rank, pace, ended=ended)

    def _say_longer(self, rank: int, pace: Pace, *, ended: bool) -> None:
        """Prints that a rank's steps take longer, and where, and requests a window to find the reason."""
        from whystall.report.format import duration
        from whystall.run_folder.layout import CAPTURE_NOW

        who = f"rank {rank}: " if len(self._paces) > 1 else ""
        times = f"{who}steps take {pace.ratio:.2f} times as long as at first"
        beside = self._beside(rank, pace)
        if pace.computes and not beside:
            if pace.ratio < _WORTH_SAYING:
                return  # machines do not keep one pace
            self._say_change(f"longer: {times}, in computing alone: the machine may be slower or shared")
        else:
            grown = f"; {pace.grown} grew by {duration(pace.grown_ns)}" if pace.grown else ""
            self._say_change(f"slower: {times}{grown}{beside}")
        self._slower[rank] = pace.ratio
        if self._windows and not ended:
            (self._folder / CAPTURE_NOW).touch()
            self._say_change("a window was asked for, to see why")

    def _beside(self, rank: int, pace: Pace) -> str:
        """The sentence on programs beside the job, from a rank's view of its machine; empty where they use little."""
        from whystall.analysis.run_summary import cores_of_others

        lately = {one.rank: one.latest_ticks(_LATELY_S) for one in self._followed.values()}
        mates = [ticks for other, ticks in lately.items() if other != rank]
        others = cores_of_others(lately[rank], mates) or 0.0
        busy = others >= _OTHERS_BUSY or (others >= _OTHERS_SEEN and 1 + 2 * others >= pace.ratio)
        return f"; other programs use {others:.2g} cores" if busy else ""

    def _is_surely(self, rank: int, pace: Pace, *, ended: bool) -> bool:
        """Whether a rank that seems slower is: beyond its pace's own scatter, and at two looks in a row.

        A momentary slowdown is over by the second look, and the cores of other programs meanwhile are known.
        """
        if rank in self._slower:
            return True
        usual = self._usual[rank]
        if usual is None:
            longer = pace.ratio >= _CLEARLY
        else:
            usual_ns, scatter = usual
            longer = pace.ratio >= 1 + _BEYOND * scatter and pace.in_a_row_ns >= _ABOVE_USUAL * usual_ns
        if not longer:
            return False
        seen_before = rank in self._suspected
        self._suspected.add(rank)
        return seen_before or self._once or ended

    def _say_verdict(self) -> None:
        import whystall

        try:
            self._report = whystall.analyze(self._folder, cache=False)
        except InputError:
            return
        verdict = self._report.verdict
        said = verdict.summary if verdict.cause is None else f"{verdict.summary} [{verdict.cause}]"
        if said != self._said:
            self._said = said
            self._say_change(f"so far: {said}")

    def _say_change(self, text: str) -> None:
        """Prints a lasting change, which the page keeps; a momentary pace is not one."""
        self._console.result(text)
        self._changes.append(f"{time.strftime('%H:%M:%S')} {text}")

    def job(self, *, ended: bool) -> LiveJob:
        """The state of the job, for a page."""
        from whystall.report.live_page import LiveJob, LiveRank

        ranks = []
        for one in sorted(self._followed.values(), key=lambda one: one.rank):
            pace = self._paces.get(one.rank)
            known = (None, {}, None) if pace is None else (pace.median_ns, pace.shares, pace.ratio)
            ranks.append(LiveRank(one.rank, one.steps, *known))
        return LiveJob(self.run, ended, ranks, tuple(self._changes), self._report)

    @property
    def run(self) -> str:
        """The name of the run folder."""
        return self._folder.resolve().name

    def points(self) -> list[Point]:
        """The state of the job as metrics."""
        from whystall.report.metrics import RankMetrics, points_of_ranks, points_of_report
        from whystall.trace.following import BOUNDS_S
        from whystall.vocabulary.metrics import Histogram

        ranks = []
        for one in self._followed.values():
            pace = self._paces.get(one.rank)
            shares, ratio = (pace.shares, pace.ratio) if pace is not None else ({}, None)
            steps = Histogram(BOUNDS_S, one.buckets, one.total_s, one.began_unix_ns)
            ranks.append(RankMetrics(one.rank, steps, shares, ratio))
        report = [] if self._report is None else points_of_report(self._report)
        return [*points_of_ranks(ranks), *report]


def _write_metrics(path: Path, watched: Watched) -> None:
    """Writes the file of metrics atomically, and replaces only an earlier one.

    Raises `UsageError` where it cannot be written.
    """
    from whystall.report.metrics import are_metrics, metrics_text

    text = metrics_text(watched.run, watched.points()).encode()
    output.place(path, lambda stream: stream.write(text), over=Over.OUR_OWN, is_ours=are_metrics)


def _send_metrics(collector: Collector, watched: Watched) -> None:
    from whystall import __version__
    from whystall.report.otlp import otlp_json

    collector.send(otlp_json(watched.run, watched.points(), version=__version__, at_unix_ns=time.time_ns()))
