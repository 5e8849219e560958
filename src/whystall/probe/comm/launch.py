"""Starts the processes of a sweep on this machine, waits for them no longer than allowed, and ends them.

They find each other through a file and speak over loopback alone. Only processes that were started here are ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import psutil

from whystall.errors import WhystallError
from whystall.json_text import parse_json
from whystall.probe.comm.plan import Plan
from whystall.probe.comm.results import CommProbe
from whystall.probe.comm.worker import LOOPBACK, PLAN, RESULT

_POLL_S: Final = 0.05
_FOLLOW_S: Final = 0.5  # within which the victims of a lost rank end, too
_LOST_PEER: Final = ("connection", "peer", "timed out", "timeout")
_LAUNCHERS: Final = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")

Watch = Callable[[str, Sequence[int]], None]
"""Called with where rank 0 stands, each time that changes, and the process ids by rank."""


def run_sweep(plan: Plan, watch: Watch = lambda _where, _pids: None) -> CommProbe:
    """The sweep between processes started here. Raises ``WhystallError`` where one dies or the time is over."""
    with tempfile.TemporaryDirectory(prefix="whystall-comm-") as name:
        folder = Path(name)
        (folder / PLAN).write_bytes(msgspec.json.encode(plan))
        started = [_start(folder, rank) for rank in range(plan.ranks)]
        try:
            _wait(folder, started, plan, watch)
        finally:
            for one in started:
                if one.poll() is None:
                    one.kill()
                one.wait()
        return parse_json((folder / RESULT).read_bytes(), type=CommProbe)


def _start(folder: Path, rank: int) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if name not in _LAUNCHERS}
    environment |= LOOPBACK
    environment.setdefault("OMP_NUM_THREADS", "1")
    with (folder / f"rank{rank}.out").open("wb") as output:
        return subprocess.Popen(  # noqa: S603 - this package's own module
            [sys.executable, "-P", "-m", "whystall.probe.comm.worker", str(folder), str(rank)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )


def _wait(folder: Path, started: Sequence[subprocess.Popen[bytes]], plan: Plan, watch: Watch) -> None:
    end = time.monotonic() + plan.timeout_s
    where = ""
    while True:
        codes = [one.poll() for one in started]
        if all(code == 0 for code in codes):
            return
        if any(codes):
            time.sleep(_FOLLOW_S)
            raise WhystallError(_why_ended(folder, [one.poll() for one in started]))
        if time.monotonic() > end:
            raise WhystallError(_why_late(folder, started, plan.timeout_s))
        now = _text(folder / "rank0.at")
        if now != where:
            where = now
            watch(now, [one.pid for one in started])
        time.sleep(_POLL_S)


def _why_ended(folder: Path, codes: Sequence[int | None]) -> str:
    """Which rank ended first, as far as it shows: one that a signal ended, then one that did not lose a peer."""
    ended = {rank: code for rank, code in enumerate(codes) if code}
    why = {rank: _text(folder / f"rank{rank}.error") for rank in ended}

    def suspicion(rank: int) -> tuple[bool, bool, int]:
        return ended[rank] > 0, any(word in why[rank].lower() for word in _LOST_PEER), rank

    rank = min(ended, key=suspicion)
    code = ended[rank]
    how = f"signal {_signal(-code)}" if code < 0 else why[rank] or f"exit code {code}: {_last_line(folder, rank)}"
    return f"rank {rank} ended in {_doing(folder, rank)}: {how}; nothing was measured"


def _why_late(folder: Path, started: Sequence[subprocess.Popen[bytes]], timeout_s: float) -> str:
    stopped = [rank for rank, one in enumerate(started) if _is_stopped(one.pid)]
    parts = [f"rank {rank} in {_doing(folder, rank)}{' (stopped)' * (rank in stopped)}" for rank in range(len(started))]
    told = parts[:8] + ["…"] * (len(parts) > 8)
    return f"the sweep did not end within {timeout_s:g} s (--timeout) and was ended; last seen: {', '.join(told)}"


def _is_stopped(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def _doing(folder: Path, rank: int) -> str:
    kind, _, size = _text(folder / f"rank{rank}.at").partition(" ")
    return f"{kind} of {size} bytes" if size.isdigit() else "starting" if not kind else f"{kind} {size}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _last_line(folder: Path, rank: int) -> str:
    lines = [line.strip() for line in _text(folder / f"rank{rank}.out").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
