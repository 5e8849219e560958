"""The tools that a client may call: their arguments, and their answers within limits. Nothing here knows the protocol.

Every answer is text. Names out of traces are cleaned and cut, rows are counted, and an answer that would be too long
has fewer rows and says so.
"""

from __future__ import annotations

import difflib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import polars as pl

from whystall import _api
from whystall._fixing import Judge
from whystall._inputs import known_rules
from whystall.diagnosis.catalogue import described
from whystall.disk import reading
from whystall.errors import InputError, UsageError
from whystall.json_text import NotJsonError
from whystall.mcp_server.folders import Folders, walk
from whystall.report import schema
from whystall.report.comparison import render_comparison
from whystall.report.names import clean
from whystall.report.schema import Report
from whystall.run_folder.layout import SAMPLES_SUFFIX
from whystall.trace.discovery import looks_like_trace
from whystall.trace.model import Trace
from whystall.trace.readers.reader import Reader
from whystall.trace.readers.registry import installed_readers

MOST_CHARACTERS: Final = 40_000
MOST_ROWS: Final = 200
_LONGEST_NAME: Final = 200
_MOST_REPORT_BYTES: Final = 64 << 20
_HEAD_BYTES: Final = 256
_REPORTS_KEPT: Final = 8
_MOST_EVIDENCE: Final = 6
_MOST_TRIED: Final = 10
_MOST_ROWS_OF_A_PATCH: Final = 30
_MOST_CAUSES: Final = 5
_ACCEPTED: Final = (
    "A change is kept if steps are faster beyond the noise in interleaved pairs of runs, the losses of the steps "
    "agree, memory grows by at most a tenth (or 64 MiB), and the whole job ends with exit code 0, with no fewer steps "
    "and no fewer files. Python, YAML and JSON files may change."
)

Rows = Annotated[int, msgspec.Meta(ge=1, le=MOST_ROWS)]
_PATH = "trace, run folder or report.json, as `list_runs` names it"
Path_ = Annotated[str, msgspec.Meta(description=_PATH, max_length=1_000)]
Table = Literal[
    "device_events", "operators", "runtime_calls", "python_functions", "annotations", "device_annotations", "steps",
    "synchronizations",
]  # fmt: skip
_COLUMNS: Final = ("ts_ns", "duration_ns", "name", "thread", "device", "stream", "correlation", "category", "bytes")


class _Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ListRuns(_Arguments, frozen=True):
    """Arguments of ``list_runs``."""

    limit: Rows = 100


class Analyze(_Arguments, frozen=True):
    """Arguments of ``analyze``."""

    path: Path_
    details: Annotated[bool, msgspec.Meta(description="all tables instead of a page")] = False


class Findings(_Arguments, frozen=True):
    """Arguments of ``findings``."""

    path: Path_
    limit: Rows = 10


class Explain(_Arguments, frozen=True):
    """Arguments of ``explain``."""

    cause: Annotated[str | None, msgspec.Meta(description="a cause's id; without one, all are listed")] = None


class Compare(_Arguments, frozen=True):
    """Arguments of ``compare``."""

    base: Path_
    candidate: Path_


class Events(_Arguments, frozen=True):
    """Arguments of ``events``."""

    path: Annotated[str, msgspec.Meta(description="one trace file", max_length=1_000)]
    table: Table = "device_events"
    name_contains: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    from_ns: Annotated[int | None, msgspec.Meta(description="only events that begin at or after this ts_ns")] = None
    until_ns: Annotated[int | None, msgspec.Meta(description="only events that begin before this ts_ns")] = None
    at_least_ns: Annotated[int | None, msgspec.Meta(description="only events that last so long")] = None
    order: Literal["longest", "time"] = "longest"
    limit: Rows = 50


class Brief(_Arguments, frozen=True):
    """Arguments of ``brief``."""

    path: Path_


class JudgeChange(_Arguments, frozen=True):
    """Arguments of ``judge_change``."""

    patch: Annotated[str, msgspec.Meta(description="a unified diff, as `git diff` writes it", max_length=1 << 20)]


class Tools:
    """The tools over given folders. Reports are kept while the files that they are of stay as they were.

    ``judge`` runs the one command that the server was started with; without it nothing is run.
    """

    def __init__(self, folders: Folders, judge: Judge | None = None) -> None:
        self._folders = folders
        self._judge = judge
        self._readers, _ = installed_readers()
        self._reports: OrderedDict[tuple[object, ...], Report] = OrderedDict()
        self._trace: tuple[tuple[object, ...], Trace] | None = None

    @property
    def offered(self) -> tuple[Tool, ...]:
        """The tools that a client may call."""
        return TOOLS if self._judge is None else (*TOOLS, JUDGE)

    def list_runs(self, arguments: ListRuns) -> str:
        """Traces, run folders and reports in the folders given."""
        found: dict[str, dict[str, object]] = {}
        for root in self._folders.roots:
            for path in walk(root):
                if path.is_symlink() or not path.is_file():
                    continue
                if path.name.endswith(SAMPLES_SUFFIX):
                    found.setdefault(self._folders.shown(path.parent), {"kind": "run folder"})
                elif kind := _kind(path, self._readers):
                    found[self._folders.shown(path)] = {"kind": kind, "bytes": path.stat().st_size}
        rows = [{"path": clean(name, 500), **found[name]} for name in sorted(found)]
        return _rows_within_limit({}, "runs", rows, arguments.limit)

    def analyze(self, arguments: Analyze) -> str:
        """The report in words."""
        return _cut(_api.render(self._report(arguments.path), "terminal", width=120, verbose=arguments.details))

    def findings(self, arguments: Findings) -> str:
        """The verdict and the findings as data."""
        report = self._report(arguments.path)
        raw: list[dict[str, Any]] = [msgspec.to_builtins(finding) for finding in report.findings]
        for finding in raw:
            for evidence in finding["evidence"]:
                evidence["events"] = evidence["events"][:3]
        head = {
            "verdict": msgspec.to_builtins(report.verdict),
            "plan": msgspec.to_builtins(report.plan),
            "fidelity": report.fidelity,
            "noise": report.noise,
            "not_looked_for": {one.id: one.missing_signals for one in report.abstained},
        }
        return _rows_within_limit(head, "findings", raw, arguments.limit)

    def explain(self, arguments: Explain) -> str:
        """The entry of a cause, or the list of all."""
        known = known_rules()
        if arguments.cause is None:
            return _json({rule.cause.id: rule.cause.title for rule in known.values()})
        if arguments.cause not in known:
            near = difflib.get_close_matches(arguments.cause[:100], known, n=3, cutoff=0.4)
            hint = f": did you mean {', '.join(near)}?" if near else "; without an argument all are listed"
            raise UsageError(f"no cause is called {clean(arguments.cause, 100)!r}{hint}")
        return _json(described(known[arguments.cause]))

    def compare(self, arguments: Compare) -> str:
        """The changes between two runs, in words."""
        base, candidate = self._report(arguments.base), self._report(arguments.candidate)
        names = (clean(arguments.base, 200), clean(arguments.candidate, 200))
        from whystall.diagnosis.comparison import compare_reports  # noqa: PLC0415 - only this tool needs it

        return _cut(render_comparison(compare_reports(base, candidate, names), "terminal", rows=10))

    def events(self, arguments: Events) -> str:
        """Events of one table of one trace."""
        frame: pl.DataFrame = getattr(self._load(arguments.path), arguments.table)
        chosen = frame.select([name for name in _COLUMNS if name in frame.columns]).filter(_wanted(arguments, frame))
        key = "duration_ns" if arguments.order == "longest" and "duration_ns" in chosen.columns else "ts_ns"
        first = chosen.sort([key, "ts_ns"], descending=[key == "duration_ns", False]).head(arguments.limit)
        head: dict[str, object] = {"table": arguments.table, "matching": len(chosen)}
        if "duration_ns" in chosen.columns:
            head["matching_total_duration_ns"] = int(chosen["duration_ns"].sum() or 0)
        return _rows_within_limit(head, "events", first.to_dicts(), arguments.limit)

    def brief(self, arguments: Brief) -> str:
        """The task of an agent that is to change the program: the first causes, what was tried, what is accepted."""
        report = self._report(arguments.path)
        causes = [
            {
                "cause": finding.id,
                "title": finding.title,
                "speed_up": msgspec.to_builtins(finding.gain),
                "lines": msgspec.to_builtins(finding.code),
                "evidence": [
                    f"{one.what}: {one.value} {one.unit}".rstrip() for one in finding.evidence[:_MOST_EVIDENCE]
                ],
                "remedy": None if finding.remedy is None else finding.remedy.text,
                "risk": None if finding.remedy is None else finding.remedy.risk,
            }
            for finding in report.findings
            if finding.gain is not None and finding.because is None
        ]
        tried = [] if self._judge is None else self._judge.attempts()
        head = {
            "verdict": report.verdict.summary,
            "accepted": _ACCEPTED,
            "tried": [
                {"lines": _changed_lines(one.patch), "verdict": one.verdict, "because": one.because}
                for one in tried[-_MOST_TRIED:]
            ],
        }
        return _rows_within_limit(head, "causes", causes, _MOST_CAUSES)

    def judge_change(self, arguments: JudgeChange) -> str:
        """Whether a change of the program is kept, by interleaved runs."""
        if self._judge is None:
            raise UsageError("the server was started without --job: it runs nothing")
        found = self._judge(arguments.patch.encode())
        [attempt] = found.attempts
        return _json(
            {
                "verdict": attempt.verdict,
                "because": attempt.because,
                "cause": attempt.cause,
                "predicted": attempt.predicted,
                "speed_up": msgspec.to_builtins(attempt.speedup),
                "pairs": len(attempt.after_s),
                "losses": attempt.losses,
                "memory_kib": attempt.memory_kib,
            }
        )

    def _report(self, asked: str) -> Report:
        path = self._folders.find(asked)
        if path.is_file() and _is_report(path):
            return _stored(path, self._folders.shown(path))
        key = _state(path)
        if key not in self._reports:
            with self._named_as_asked(path):
                self._reports[key] = _api.analyze(path, cache=False)
            while len(self._reports) > _REPORTS_KEPT:
                self._reports.popitem(last=False)
        return self._reports[key]

    def _load(self, asked: str) -> Trace:
        path = self._folders.find(asked)
        if path.is_dir():
            raise InputError(f"{self._folders.shown(path)} is a folder: name one of its traces")
        key = _state(path)
        if self._trace is None or self._trace[0] != key:
            with self._named_as_asked(path):
                self._trace = key, _api.load(path, cache=False)
        return self._trace[1]

    @contextmanager
    def _named_as_asked(self, path: Path) -> Iterator[None]:
        """Names an unreadable path as the client does, not by its place on this machine."""
        try:
            yield
        except InputError as error:
            raise InputError(str(error).replace(str(path), self._folders.shown(path))) from None


def _changed_lines(patch: str) -> list[str]:
    """The first lines that a patch takes out or puts in."""
    return [line for line in patch.splitlines() if line[:1] in ("+", "-")][:_MOST_ROWS_OF_A_PATCH]


def _wanted(arguments: Events, frame: pl.DataFrame) -> pl.Expr:
    wanted = pl.lit(value=True)
    if arguments.name_contains:
        name = pl.col("name").cast(pl.String)
        wanted &= name.str.to_lowercase().str.contains(arguments.name_contains.lower(), literal=True)
    if arguments.from_ns is not None:
        wanted &= pl.col("ts_ns") >= arguments.from_ns
    if arguments.until_ns is not None:
        wanted &= pl.col("ts_ns") < arguments.until_ns
    if arguments.at_least_ns is not None and "duration_ns" in frame.columns:
        wanted &= pl.col("duration_ns") >= arguments.at_least_ns
    return wanted


def _state(path: Path) -> tuple[object, ...]:
    """A state that changes with a file, or with any file of a folder."""
    files = [path] if path.is_file() else list(walk(path))
    stats = [(file, file.stat()) for file in files if file.exists()]
    return (
        str(path),
        *((str(file), stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_size) for file, stat in stats),
    )


def _kind(path: Path, readers: Sequence[Reader]) -> Literal["trace", "report"] | None:
    """The kind of a file that a client may name by itself."""
    if path.suffix == ".json" and _is_report(path):
        return "report"
    return "trace" if looks_like_trace(path, readers) else None


def _is_report(path: Path) -> bool:
    try:
        with reading.opened(path) as stream:
            return b"whystall.report/" in stream.read(_HEAD_BYTES)
    except OSError:
        return False


def _stored(path: Path, shown: str) -> Report:
    if path.stat().st_size > _MOST_REPORT_BYTES:
        raise InputError(f"{shown} is larger than {_MOST_REPORT_BYTES >> 20} MiB: no report that whystall wrote")
    try:
        return schema.decode(reading.content(path))
    except NotJsonError as error:
        raise InputError(f"{shown} is no report that this whystall can read: {error}") from None


def _cut(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:MOST_CHARACTERS]}\n… cut after {MOST_CHARACTERS:,} characters of {len(text):,}"


def _rows_within_limit(head: dict[str, Any], name: str, rows: list[dict[str, Any]], limit: int) -> str:
    """JSON of the rows that are allowed and fit, with the number of all."""
    kept = min(limit, len(rows))
    while True:
        text = _json({**head, f"{name}_in_all": len(rows), name: rows[:kept]})
        if len(text) <= MOST_CHARACTERS or kept == 0:
            return _cut(text)
        kept //= 2


def _json(value: object) -> str:
    return json.dumps(_cleaned(value), indent=1, ensure_ascii=False)


def _cleaned(value: object) -> object:
    """The same with every text from a trace safe to show."""
    if isinstance(value, str):
        return clean(value, _LONGEST_NAME * 5)
    if isinstance(value, dict):
        return {clean(str(key), _LONGEST_NAME): _cleaned(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(one) for one in value]
    return value


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool for clients: its name, description, arguments, and the method that answers."""

    name: str
    description: str
    arguments: type[_Arguments]
    answer: Callable[[Tools, Any], str]


TOOLS: Final = (
    Tool("list_runs", "List the traces, run folders and reports that can be asked for.", ListRuns, Tools.list_runs),
    Tool(
        "analyze",
        "Say why a run is slow: verdict, ledger of a step, findings, tables, as text.",
        Analyze,
        Tools.analyze,
    ),
    Tool(
        "findings",
        "The causes found, most valuable first: evidence, code lines, predicted speed-up (floor, expected, ceiling), "
        "remedy, how to verify; as JSON.",
        Findings,
        Tools.findings,
    ),
    Tool(
        "explain",
        "Explain a cause: its meaning, how it is measured, how to fix it and how to see that the fix worked.",
        Explain,
        Tools.explain,
    ),
    Tool("compare", "Show the changes between two runs, and which cause went away.", Compare, Tools.compare),
    Tool(
        "brief",
        "The task of an agent that changes the program: the first causes with lines and bounds, changes that were "
        "tried, and when a change is accepted.",
        Brief,
        Tools.brief,
    ),
    Tool("events", "Look up events of one trace: by table, name, time and duration.", Events, Tools.events),
)
JUDGE: Final = Tool(
    "judge_change",
    "Run the job with and without a change (a unified diff), in a copy, and say whether it is kept or rejected. This "
    "takes minutes.",
    JudgeChange,
    Tools.judge_change,
)
"""Only of a server that was started with a command."""


def call(tools: Tools, name: str, arguments: dict[str, Any] | None) -> str:
    """The answer of a tool. Raises `WhystallError` with a sentence for an unanswerable call."""
    known = tools.offered
    tool = next((one for one in known if one.name == name), None)
    if tool is None:
        raise UsageError(f"no tool is called {clean(name, 100)!r}: there are {', '.join(one.name for one in known)}")
    try:
        given = msgspec.convert(arguments or {}, tool.arguments)
    except msgspec.ValidationError as error:
        raise UsageError(f"{tool.name}: {clean(str(error), 300)}") from None
    return tool.answer(tools, given)


def input_schema(tool: Tool) -> dict[str, Any]:
    """The JSON Schema of a tool's arguments."""
    (described,), components = msgspec.json.schema_components([tool.arguments])
    name = str(described["$ref"]).rpartition("/")[2]
    return {key: value for key, value in components[name].items() if key not in {"title", "description"}}
