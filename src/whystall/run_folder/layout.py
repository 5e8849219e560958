"""The names of a run folder's files.

Made and recognised here alone, always whole, never by a pattern that others' names fit.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Final, Literal, NamedTuple

RUNS: Final = "whystall-runs"
"""The folder of runs without one of their own."""
RUN_JSON: Final = "run.json"
"""The command of the run, and each rank's description; its schema marks the folder as a run."""
REPORT_JSON: Final = "report.json"
REPORT_HTML: Final = "report.html"
EXPERIMENTS_JSON: Final = "experiments.json"
TUNE_JSON: Final = "tune.json"
"""Every run of a search over settings, in a folder of its own; the search resumes from it."""
TUNE_HTML: Final = "tune.html"
TUNE_DEEPSPEED: Final = "tune-deepspeed.json"
FIX_ATTEMPTS: Final = "fixes.jsonl"
"""Every edit that `fix` tried, in a folder of its own; what was rejected is not tried again on the same program."""
FIX_JSON: Final = "fix.json"
FIX_PATCH: Final = "fix.patch"
FIX_MD: Final = "fix.md"
"""The text of a pull request."""
SERVER_LOG: Final = "serve-log.txt"
"""The output of a server that `serve run` started, its ``/metrics`` (first, last, a series), and its spans."""
METRICS_BEFORE: Final = "serve-metrics-before.txt"
METRICS_AFTER: Final = "serve-metrics-after.txt"
METRICS_SERIES: Final = "serve-metrics.jsonl"
SERVER_SPANS: Final = "serve-spans.jsonl"
CAPTURE_NOW: Final = "capture-now"
"""A user touches this file to request a window at once."""

SAMPLES_SUFFIX: Final = ".samples.jsonl"
DESCRIPTION_SUFFIX: Final = ".run.json"
TRACE_SUFFIX: Final = ".trace.json.gz"
FLIGHT_SUFFIX: Final = ".flight.pickle"
VALUES_SUFFIX: Final = ".values.json.gz"
_OOM: Final = ".oom.pickle"

_NUMBER: Final = r"(0|[1-9][0-9]{0,8})"
_OF_A_RANK: Final = re.compile(
    rf"rank{_NUMBER}(?:(?P<samples>\.samples\.jsonl)|(?P<description>\.run\.json)|(?P<flight>\.flight\.pickle)|(?P<values>\.values\.json\.gz)|(?P<memory>\.(?:memory|oom)\.pickle)|(?:\.window(?P<window>0|[1-9][0-9]{{0,8}}))?(?P<trace>\.trace\.json\.gz))"
)
# Files that are written beside their place and then moved there; a process that was killed leaves them.
_STAGED: Final = re.compile(
    rf"\.whystall-[0-9a-f]{{16}}|\.window{_NUMBER}\.begins(?:\.[0-9]+)?|\.run\.json\.[0-9]+|rank{_NUMBER}\.run\.[0-9]+|rank{_NUMBER}\.flight\.[0-9]+|\.rank{_NUMBER}\.(?:memory|oom)\.pickle\.[0-9]+|\.rank{_NUMBER}\.samples\.jsonl\.[0-9]+|\.rank{_NUMBER}(?:(?:\.window{_NUMBER})?\.trace|\.values)\.json\.gz\.[0-9]+(?:\.json)?"
)
_JOURNAL: Final = re.compile(r"process(?P<pid>[1-9][0-9]{0,9})\.job\.jsonl")
_SERVED: Final = (SERVER_LOG, METRICS_BEFORE, METRICS_AFTER, METRICS_SERIES, SERVER_SPANS)
_OF_THE_RUN: Final = frozenset((REPORT_JSON, REPORT_HTML, EXPERIMENTS_JSON, *_SERVED))
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")


Kind = Literal["samples", "description", "flight", "values", "memory", "trace"]


_ONE_OF_A_RANK: Final[tuple[Kind, ...]] = ("samples", "description", "flight", "values", "memory")


class RankFile(NamedTuple):
    """The kind of a rank's file; ``window`` counts a rank's traces from 0."""

    rank: int
    kind: Kind
    window: int = 0


def samples_name(rank: int) -> str:
    """The name of a rank's samples.

    >>> samples_name(3)
    'rank3.samples.jsonl'
    """
    return f"rank{rank}{SAMPLES_SUFFIX}"


def description_name(rank: int) -> str:
    """The name of a rank's description at its end."""
    return f"rank{rank}{DESCRIPTION_SUFFIX}"


def flight_name(rank: int) -> str:
    """The name of a rank's flight recorder dump, made when the rank hung or failed.

    >>> flight_name(3)
    'rank3.flight.pickle'
    """
    return f"rank{rank}{FLIGHT_SUFFIX}"


HELD_SCOPE: Final = "whystall: held"
"""Scope in the values of a rank, at their beginning and at their end: the memory that the job holds all along."""
STEP_SCOPE: Final = "whystall: step"
"""Scope in the values of a rank, between two steps."""
READ_SCOPE: Final = "whystall: read"
"""Scope in the values of a rank, at their end: a tensor was pickled or handed to another library meanwhile."""


def values_name(rank: int) -> str:
    """The name of a rank's values: which tensors the operators of three steps were given, and returned.

    >>> values_name(3)
    'rank3.values.json.gz'
    """
    return f"rank{rank}{VALUES_SUFFIX}"


def snapshot_name(rank: int) -> str:
    """The name of a snapshot of a rank's CUDA allocator, at the end of a window.

    >>> snapshot_name(3), oom_name(3)
    ('rank3.memory.pickle', 'rank3.oom.pickle')
    """
    return f"rank{rank}.memory.pickle"


def oom_name(rank: int) -> str:
    """The same for the moment at which memory ran out."""
    return f"rank{rank}{_OOM}"


def journal_name(pid: int) -> str:
    """The name of a process's journal of the job's parts.

    >>> journal_name(42)
    'process42.job.jsonl'
    """
    return f"process{pid}.job.jsonl"


COMPILE_LOGS: Final = "compile"
"""The folder in a run's folder for logs of torch's compiler."""
_COMPILE_LOG: Final = re.compile(r"dedicated_log_torch_trace_\w+\.log")


def compile_logs(folder: Path) -> list[Path]:
    """The logs of torch's compiler in a run's folder."""
    logs = folder / COMPILE_LOGS
    return sorted(path for path in (logs.iterdir() if logs.is_dir() else ()) if _COMPILE_LOG.fullmatch(path.name))


def journals(folder: Path) -> list[tuple[int, Path]]:
    """The journals in a folder with the numbers of their processes."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        named = _JOURNAL.fullmatch(path.name)
        if named is not None:
            found.append((int(named["pid"]), path))
    return sorted(found)


WHOLE_STEPS: Final = "whystall_whole_steps"
"""Metadata key of a trace: its number of whole steps, where the job ended in the middle of one."""


def trace_name(rank: int, window: int = 0) -> str:
    """The name of a rank's trace.

    >>> trace_name(0), trace_name(0, 2)
    ('rank0.trace.json.gz', 'rank0.window2.trace.json.gz')
    """
    return f"rank{rank}{TRACE_SUFFIX}" if window == 0 else f"rank{rank}.window{window}{TRACE_SUFFIX}"


def window_name(window: int) -> str:
    """Where the ranks of a job agree after which step a window begins.

    >>> window_name(0)
    '.window0.begins'
    """
    return f".window{window}.begins"


def staged_window(name: str, pid: int) -> str:
    """Where that is written before it takes its name."""
    return f"{name}.{pid}"


def staged_run(pid: int) -> str:
    """Where ``run.json`` is written before it takes its name."""
    return f".{RUN_JSON}.{pid}"


def staged_description(rank: int, pid: int) -> str:
    """Where a description is written before it takes its name."""
    return f"rank{rank}.run.{pid}"


def staged_flight(rank: int, pid: int) -> str:
    """Where a flight recorder's dump is written before it takes its name."""
    return f"rank{rank}.flight.{pid}"


def staged_snapshot(name: str, pid: int) -> str:
    """Where a snapshot is written before it takes its name."""
    return f".{name}.{pid}"


def staged_samples(name: str, pid: int) -> str:
    """Where samples are written again, fewer, before they take their name."""
    return f".{name}.{pid}"


def staged_trace(name: str, pid: int) -> str:
    """Where a trace is packed before it takes its name; the profiler's own file has ``.json`` at its end."""
    return f".{name}.{pid}"


def rank_file(name: str) -> RankFile | None:
    """The kind of a rank's file, by its name; ``None`` for every other name.

    >>> rank_file("rank1.window2.trace.json.gz")
    RankFile(rank=1, kind='trace', window=2)
    >>> rank_file("rank0.txt"), rank_file("ranking.py"), rank_file("rank01.run.json")
    (None, None, None)
    """
    match = _OF_A_RANK.fullmatch(name)
    if match is None:
        return None
    for kind in _ONE_OF_A_RANK:
        if match[kind]:
            return RankFile(int(match[1]), kind)
    return RankFile(int(match[1]), "trace", int(match["window"] or 0))


def is_written_by_a_run(name: str) -> bool:
    """Whether a run writes a file of exactly this name, ``run.json`` left out.

    >>> [is_written_by_a_run(name) for name in ("report.html", "report.py", "resnet.py", "rank0.samples.jsonl")]
    [True, False, False, True]
    """
    known = _STAGED.fullmatch(name) is not None or _JOURNAL.fullmatch(name) is not None
    return known or name in _OF_THE_RUN or rank_file(name) is not None


def rank_files(folder: Path, kind: Kind) -> list[Path]:
    """The files of one kind in a folder, by rank and window."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        file = rank_file(path.name)
        if file is not None and file.kind == kind:
            found.append((file.rank, file.window, path))
    return [path for _, _, path in sorted(found)]


def ran_out_of_memory(folder: Path) -> bool:
    """Whether a rank of a run left a snapshot of where its device's memory ran out."""
    return any(path.name.endswith(_OOM) for path in rank_files(folder, "memory"))


def safe_name(name: str) -> str:
    """A name as a part of a folder's."""
    return _UNSAFE.sub("-", name).strip("-") or "run"


def folder_for(name: str, chosen: str | None, *, now: time.struct_time, environment: dict[str, str]) -> Path:
    """The folder of a run: ``chosen``, else a name of its own; workers of one torchrun share theirs."""
    if chosen is not None:
        return Path(chosen)
    safe = safe_name(name)
    if environment.get("TORCHELASTIC_RUN_ID"):
        shared = f"{environment['TORCHELASTIC_RUN_ID']}-{environment.get('MASTER_PORT', '')}"
        return Path(RUNS) / f"{_UNSAFE.sub('-', shared)}-{safe}"
    base = Path(RUNS) / f"{time.strftime('%Y%m%d-%H%M%S', now)}-{safe}"
    candidates = [base, *(base.with_name(f"{base.name}-{number}") for number in range(2, 1000))]
    return next(candidate for candidate in candidates if not candidate.exists())
