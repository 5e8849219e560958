"""Output of `run` while the job still runs: the verdict on its first window."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

import msgspec

from whystall.json_text import NotJsonError, parse_json
from whystall.run_folder.layout import description_name

# A job that ends soon has its report soon; beside one that goes on the first verdict costs nothing that counts.
STILL_RUNS_AFTER_S: Final = 20.0
# A job that ends with its verdict waits for the observations after the window.
SOON_S: Final = 3.0
_AGAIN_AFTER_S: Final = 15.0
_LOOKS_EVERY_S: Final = 0.5
_SURE: Final = 0.8
_LOWEST_PRIORITY: Final = 19
# A job that ends with its verdict has it sooner: at the lowest priority, beside one on all cores, it took minutes.
_LOW_PRIORITY: Final = 5


class _Gain(msgspec.Struct):
    expected: float


class _Verdict(msgspec.Struct):
    summary: str
    confidence: float
    cause: str | None = None
    gain: _Gain | None = None


class _Report(msgspec.Struct):
    verdict: _Verdict


class SoFar:
    """A thread of the launcher that has a process of low priority analyse the run folder.

    ``say`` receives one sentence. With ``sure`` it repeats until the verdict is certain enough, and then calls that.
    """

    def __init__(
        self,
        folder: Path,
        say: Callable[[str], None],
        sure: Callable[[], None] | None = None,
        *,
        after_s: float = STILL_RUNS_AFTER_S,
    ) -> None:
        self._folder = folder
        self._say = say
        self._sure = sure
        self._after_s = after_s
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="whystall-so-far", daemon=True)

    def __enter__(self) -> Self:
        """Begins to look."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """The job has ended: the report holds the rest."""
        self._stop.set()
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        described = self._folder / description_name(0)
        while not described.exists():
            if self._stop.wait(_LOOKS_EVERY_S):
                return
        said, wait_s = None, self._after_s
        while not self._stop.wait(wait_s):
            verdict = self._verdict()
            if verdict is None or self._stop.is_set():
                return
            if verdict.summary != said:
                said = verdict.summary
                self._say(f"so far: {said}")
            if self._sure is None:
                return
            if verdict.cause is not None and verdict.confidence >= _SURE:
                self._sure()
                return
            wait_s = _AGAIN_AFTER_S  # there are more samples then

    def _verdict(self) -> _Verdict | None:
        """The verdict on the recording so far; ``None`` where there is none, or it is not wanted any more."""
        words = [sys.executable, "-m", "whystall", "analyze", str(self._folder), "--json", "--no-cache"]
        environment = {**os.environ, "PYTHONSAFEPATH": "1"}
        with contextlib.suppress(OSError, NotJsonError):
            self._process = subprocess.Popen(  # noqa: S603 - ourselves
                words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            priority = _LOWEST_PRIORITY if self._sure is None else _LOW_PRIORITY
            os.setpriority(os.PRIO_PROCESS, self._process.pid, priority)
            said, _ = self._process.communicate()
            return parse_json(said, type=_Report).verdict
        return None
