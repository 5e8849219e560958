"""The schema of ``run.json``: the command, and each rank's description at its end.

Written and read by the same types.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from whystall.disk import reading
from whystall.json_text import NotJsonError, parse_json
from whystall.run_folder.job_times import JobTimes
from whystall.run_folder.layout import RUN_JSON, rank_files
from whystall.run_folder.observations import MadeAt, Observations

SCHEMA: Final = "whystall.run/1"
LEAST_ACTIVE: Final = 3
"""Fewest steps that a window records by default."""
MOST_ACTIVE: Final = 8
"""Most steps of one: a short job must leave enough for the samples, which are not taken meanwhile."""
MOST_OF_ROUNDS: Final = 35
"""Most steps of one where steps come in rounds: one gathers experience that several learn from."""
_LARGEST_BYTES: Final = 16 << 20
RANKS_IN_WINDOWS: Final = 8
"""Most ranks whose window places are written: those of a thousand would make the run's description too large to be
read.
"""
_PLAIN: Final = re.compile(r"(?![-/])[\w.+/-]{1,240}")
# A launcher with options that hold no secrets, and its script.
_LAUNCHED: Final = re.compile(
    r"torchrun(?: --standalone| --n(?:nodes|proc[-_]per[-_]node)[ =](?:\d{1,5}|auto|gpu|cpu))* "
    r"(?P<script>\S{1,240}\.py)"
)


class LookCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a look at the job's tensors: its steps, and how much longer they were than others together."""

    steps: int
    longer_ns: int


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of observation: shares of the steps' time, and the time it took to write traces.

    ``hooks_share`` is our own time on the job's thread, within steps and after them. ``threads_share`` is the time that
    our threads computed beside it; the job loses the part in which it waits for a core or for Python's lock.
    ``paused_ns`` is the total pause of the job, to open windows and to close and write them, and ``looked_ns`` the
    lengthening of steps whose operators were examined, both within ``watched_ns``, from its first step to its end.
    """

    hooks_share: float
    threads_share: float = 0.0
    looked_ns: int = 0
    looks: dict[str, LookCost] = {}
    """Per look: ``modules``, ``operators``, ``values``; those that were not made are absent."""
    profiled_over_unprofiled: float | None
    export_ns: int
    paused_ns: int = 0
    watched_ns: int = 0


class SettingAt(msgspec.Struct, frozen=True):
    """A setting of the user's program, as the causes' entries name it, and the line that gives it.

    ``at.text`` shows its name and a number or a flag; a text is left out.
    """

    name: str
    at: MadeAt


PythonTool = Literal["tracemalloc", "profiler", "tracer"]
"""Tools that trace Python: `tracemalloc`, `sys.setprofile` (cProfile), `sys.settrace` (a debugger)."""
PYTHON_TOOLS: Final[tuple[PythonTool, ...]] = ("tracemalloc", "profiler", "tracer")


class RankDescription(Observations, frozen=True, kw_only=True):
    """One rank's description of itself."""

    rank: int
    pid: int
    python: str
    torch: str
    steps: int
    steps_from: str | None
    traces: list[str]
    samples: str | None
    overhead: Overhead
    notes: list[str]
    experiment: str | None
    not_recorded: dict[str, str]
    facts: dict[str, Any]
    loaders: list[dict[str, Any]]
    ended: bool = True
    """Whether the process had ended; else it still runs, or was killed."""
    process: Any = None
    """The process, as `whystall.run_folder.alive` knows it."""
    ended_by: str | None = None
    """The exception that ended the process, and where: its type, a file's base name and a line, and no message."""
    ended_unix_ns: int | None = None
    job: JobTimes | None = None
    """When the parts of the job began; ``None`` where the capture was not there from the start."""
    trial: dict[str, Any] | None = None
    """For a run of ``tune``: the settings of the trial, its batches and its place."""


class RunDescription(msgspec.Struct, frozen=True, kw_only=True):
    """``run.json``; without an exit code while the command runs. Folders and arguments of it may hold secrets.

    They are left out.
    """

    schema: Literal["whystall.run/1"] = SCHEMA
    whystall: str
    kind: Literal["script", "module", "command", "profile"]
    command: str
    exit_code: int | None
    began_unix_ns: int
    ended_unix_ns: int | None = None
    """When the command had ended."""
    schedule: Any
    ranks: list[dict[str, Any]] = []
    traces: list[str] = []
    samples: list[str] = []
    arguments: int = 0
    """The number of its arguments; their text is left out."""
    process: Any = None
    """The launcher, as `whystall.run_folder.alive` knows it."""
    settings: list[SettingAt] = []
    """Lines of the program with settings that decide whether a cause is there."""


def encode(description: RankDescription | RunDescription) -> bytes:
    """The written form of a description."""
    return msgspec.json.format(msgspec.json.encode(description), indent=1) + b"\n"


def is_launched(command: str) -> bool:
    """Whether a command is a launcher's with its script, without private arguments.

    >>> is_launched("torchrun --nproc-per-node 2 train.py")
    True
    >>> is_launched("torchrun --rdzv-endpoint=host:29400 train.py")
    False
    """
    found = _LAUNCHED.fullmatch(command)
    return found is not None and _PLAIN.fullmatch(found["script"]) is not None


def command_line(folder: Path) -> str | None:
    """The command of a run as one types it, with ``ARGS`` in place of its arguments; ``None`` where it is unknown.

    Parts that a run does not record (options of a launcher) are not made up.
    """
    run = read_document(folder / RUN_JSON)
    kind, command, arguments = run.get("kind"), run.get("command"), run.get("arguments")
    if not isinstance(command, str):
        return None
    if kind == "command" and is_launched(command):
        return f"{command}{' ARGS' if arguments else ''}"
    if kind not in ("script", "module") or not _PLAIN.fullmatch(command):
        return None
    if kind == "script" and not command.endswith((".py", ".pyw")):  # a launcher of its own, such as torchrun
        return f"{command}{' ARGS' if arguments else ''}"
    return f"python {'-m ' if kind == 'module' else ''}{command}{' ARGS' if arguments else ''}"


def is_run(folder: Path) -> bool:
    """Whether a folder's ``run.json`` marks it as a run: a file of our schema, and no link to one."""
    path = folder / RUN_JSON
    return not path.is_symlink() and read_document(path).get("schema") == SCHEMA


def ranks_of(path: Path) -> list[dict[str, Any]]:
    """The ranks' descriptions of themselves: as ``run.json`` joined them, or each by itself while the job runs."""
    joined = [rank for rank in listed(read_document(path).get("ranks")) if isinstance(rank, dict)]
    if joined or not is_run(path.parent):
        return joined
    return [rank for rank in map(read_document, rank_files(path.parent, "description")) if rank]


def read_document(path: Path) -> dict[str, Any]:
    """A JSON object in a file; empty where there is none that can be read."""
    try:
        return table(parse_json(reading.content(path, _LARGEST_BYTES)))
    except (OSError, NotJsonError):
        return {}


def table(value: object) -> dict[str, Any]:
    """A JSON object, or an empty one in place of anything else."""
    return value if isinstance(value, dict) else {}


def listed(value: object) -> list[Any]:
    """A JSON array, or an empty one in place of anything else."""
    return value if isinstance(value, list) else []
