"""Analyses damaged traces until one ends in anything but a sound report or an `InputError`.

Run by ``test_fuzz.py`` in a process of its own, so that a crash, a hang or a memory bomb is seen from outside:
``python -m tests.fuzz.worker [--nsys|--nsys-parquet|--rocpd|--rocprof|--rocprof-csv|--xspace|--pftrace] FIRST COUNT
[FOLDER]``. The last line of the output names the case at work.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from tests.fuzz import databases, messages, mutations, sets
from tests.trace.readers import rocprof_builder as rocprof

import whystall
from whystall.analysis.results import Ledger
from whystall.errors import InputError
from whystall.fleet.logs import read_logs
from whystall.report.comm_log_text import render_logs
from whystall.report.schema import Report

_GIGABYTE = 1 << 30
_PATIENCE_S = 120  # a case takes milliseconds: only a hang takes this long
_RENDER_EVERY = 16
_COLLECTIVES_EVERY = 4
_FORMATS = ("html", "markdown", "terminal")


def check(report: Report) -> None:
    """Raises `AssertionError` when numbers do not add up or the report cannot be written and read again."""
    for device in report.devices:
        _check_ledger(device.ledger, device.window_ns)
        if device.kind != "cpu":
            parts = device.ledger
            assert parts.idle_ns == device.idle_ns
            assert device.busy_ns + device.idle_ns == device.window_ns
        for step in device.steps:
            _check_ledger(step.ledger, step.window_ns)
    assert all(entry.events > 0 and entry.device_ns >= 0 for entry in report.source.dropped)
    # What a rule or the replay stumbles over becomes a warning for users; here it is a bug.
    assert not [text for text in report.source.warnings if "the rule for" in text or "could not be replayed" in text], (
        report.source.warnings
    )
    for finding in report.findings:
        if finding.gain is not None:
            assert 1 <= finding.gain.floor <= finding.gain.expected <= finding.gain.ceiling
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


def _check_ledger(ledger: Ledger, window_ns: int) -> None:
    assert ledger.total_ns == window_ns
    assert min(ledger.parts().values()) >= 0


def _put(content: bytes, path: Path) -> None:
    """Writes a case; one whose name has no suffix is of several files."""
    if path.suffix:
        path.write_bytes(content)
    else:
        sets.put(content, path)


def run(content: bytes, seed: int, path: Path) -> str:
    """What became of a case: ``report`` or ``refused``."""
    _put(content, path)
    if seed % _COLLECTIVES_EVERY == 0 and path.is_file():
        with contextlib.suppress(InputError):
            render_logs(read_logs([path], {}))
    try:
        report = whystall.analyze(path, cache=False)
    except InputError as error:
        return "refused" if "\n" not in str(error) else "refused in several lines"
    check(report)
    if seed % _RENDER_EVERY == 0:
        for name in _FORMATS:
            whystall.render(report, name).encode("utf-8")
    return "report"


def limit_memory() -> None:
    """Leaves a gigabyte beyond what the libraries map; a sanitizer maps terabytes and cannot be limited so."""
    if "asan" in os.environ.get("LD_PRELOAD", ""):
        return
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    limit = pages * resource.getpagesize() + _GIGABYTE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


Format = tuple[Callable[[Path | None], list[bytes]], Callable[[int, Sequence[bytes]], bytes], str]
FORMATS: dict[str, Format] = {
    "--kineto": (mutations.bases, mutations.damaged, "case.json"),
    "--nsys": (databases.bases, databases.damaged, "case.sqlite"),
    "--rocpd": (lambda _: databases.rocpd(), databases.damaged, "case.db"),
    "--xspace": (messages.bases, messages.damaged, "case.xplane.pb"),
    "--pftrace": (lambda _: messages.perfetto(), messages.damaged, "case.pftrace"),
    "--nsys-parquet": (lambda _: sets.exports(), sets.damaged_export, "case_pqtdir"),
    "--rocprof-csv": (lambda _: sets.jobs(), sets.damaged_job, "case_job"),
    "--rocprof": (lambda _: [rocprof.job(), rocprof.job(api=False)], mutations.damaged, "case.json"),
}


def main(first: int, count: int, recorded: Path | None, form: str) -> int:
    bases, damaged, name = FORMATS[form]
    originals = bases(recorded)
    outcomes = {"report": 0, "refused": 0}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        for seed in (-16, -15):  # starts threads and pools before the limit is set
            run(damaged(seed, originals), seed, path)
        limit_memory()
        for seed in range(first, first + count):
            print(f"case {seed}", flush=True)  # noqa: T201 - the parent reads it
            faulthandler.dump_traceback_later(_PATIENCE_S, exit=True)
            try:
                outcomes[run(damaged(seed, originals), seed, path)] += 1
            except BaseException:  # noqa: BLE001 - whatever it is, the case failed
                traceback.print_exc()
                return 1
            faulthandler.cancel_dump_traceback_later()
    print(f"done: {outcomes['report']} reports, {outcomes['refused']} refused")  # noqa: T201 - the parent reads it
    return 0


if __name__ == "__main__":
    faulthandler.enable()
    arguments = [argument for argument in sys.argv[1:] if argument not in FORMATS]
    chosen = next((argument for argument in sys.argv[1:] if argument in FORMATS), "--kineto")
    folder = Path(arguments[2]) if len(arguments) > 2 else None
    sys.exit(main(int(arguments[0]), int(arguments[1]), folder, chosen))
