"""Formats of reports and traces, in one tuple to read top to bottom.

A format's module is imported at its first use: the command line lists them all whenever it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any, Final

from whystall.errors import UsageError

if TYPE_CHECKING:
    from whystall.report.sections.section import Section
    from whystall.trace.model import Trace
    from whystall.trace.samples import RunSamples
    from whystall.vocabulary.metrics import Told

Report = Any
"""`whystall.report.schema.Report`, which shows itself in notebooks by this registry: so it is not imported here."""
Fill = Callable[[IO[bytes]], object]
"""Writes one file's content to a stream."""


_CURVES: Final = "the verdict, times of steps, the ledger's shares, gains and the page, for a tracker of experiments"


@dataclass(frozen=True, slots=True)
class TimelineLinks:
    """The address of a timeline on a page's server, and the words of links to it.

    After ``prefix`` comes a finding's place, or the word step.
    """

    prefix: str
    finding: str
    step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of formats besides the report; each format uses its own."""

    width: int = 100
    colour: bool = False
    verbose: bool = False
    root: str | None = None
    """The folder that paths of code are named relative to."""
    more_sections: Sequence[Section] = ()
    """Sections of other packages, shown after whystall's."""
    timelines: TimelineLinks | None = None
    """Links to timelines; a page that stands alone has none."""


@dataclass(frozen=True, slots=True)
class _Export:
    """A format by name, its help, and the place of its function: ``module:function``."""

    name: str
    help: str
    at: str

    @property
    def function(self) -> Callable[..., Any]:
        """The function that makes the format."""
        module, _, function = self.at.partition(":")
        found: Callable[..., Any] = getattr(import_module(module), function)
        return found


@dataclass(frozen=True, slots=True)
class ReportFormat(_Export):
    """The report as one text; ``-o`` picks the format by the suffixes."""

    suffixes: tuple[str, ...] = ()
    exported: bool = True
    """Whether ``whystall export`` offers it."""

    def render(self, report: Report, options: Options) -> str:
        """The text: same report and options, same text."""
        text: str = self.function(report, options)
        return text


@dataclass(frozen=True, slots=True)
class TraceFile(_Export):
    """A trace as one file; gzipped on request."""

    hint: str = ""
    """Advice for the file, which replaces ``{}``."""

    def write(self, trace: Trace, stream: IO[bytes], *, compress: bool) -> None:
        """Writes the trace."""
        self.function(trace, stream, compress=compress)


@dataclass(frozen=True, slots=True)
class TraceFolder(_Export):
    """A trace as several files in a folder."""

    def files(self, trace: Trace) -> dict[str, Fill]:
        """Writers of each file, by name."""
        files: dict[str, Fill] = self.function(trace)
        return files


@dataclass(frozen=True, slots=True)
class RunFile(_Export):
    """The samples of a watched run as one file."""

    def write(self, samples: Sequence[RunSamples], stream: IO[bytes]) -> None:
        """Writes the steps of all ranks."""
        self.function(samples, stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curves(_Export):
    """Results of a finished run, for a tool that draws curves; ``extra`` brings its ``package``."""

    extra: str
    package: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvesFolder(_Curves):
    """The run as files in a folder."""

    def files(self, told: Told) -> dict[str, Fill]:
        """Writers of each file, by name."""
        files: dict[str, Fill] = self.function(told)
        return files


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracker(_Curves):
    """The run as one of a tracker of experiments, by the tracker's own package."""

    def log(self, told: Told, where: str | None) -> tuple[str, str]:
        """Adds the run to the target of ``-o``; returns the added item, and the command that shows it."""
        added: tuple[str, str] = self.function(told, where)
        return added


EXPORTS: tuple[ReportFormat | TraceFile | TraceFolder | RunFile | CurvesFolder | Tracker, ...] = (
    ReportFormat(
        "terminal", "the report as plain text", "whystall.report.terminal:render_terminal", (".txt",), exported=False
    ),
    ReportFormat("json", "the report", "whystall.report.schema:render_json", (".json",)),
    ReportFormat("markdown", "the report", "whystall.report.markdown:render_markdown", (".md", ".markdown")),
    ReportFormat("html", "the report", "whystall.report.html:render_html", (".html", ".htm")),
    ReportFormat("notebook", "the cell of a notebook", "whystall.report.notebook:render_fragment", exported=False),
    ReportFormat("sarif", "its findings for code hosts and editors", "whystall.report.sarif:render_sarif"),
    ReportFormat(
        "github", "its findings as annotations of a GitHub workflow", "whystall.report.annotations:render_annotations"
    ),
    TraceFolder("csv", "one file per table of the trace, into a folder", "whystall.report.frames:csv_files"),
    TraceFolder("parquet", "one file per table of the trace, into a folder", "whystall.report.frames:parquet_files"),
    RunFile("steps", "every step of a watched run, as one CSV", "whystall.report.frames:write_steps"),
    TraceFile(
        "perfetto",
        "a Chrome trace without metadata, gzipped if the output ends in .gz",
        "whystall.report.perfetto:write_chrome_trace",
        "open {} at https://ui.perfetto.dev (it stays in your browser)",
    ),
    TraceFile(
        "speedscope",
        "a flame chart per thread and stream, gzipped if the output ends in .gz",
        "whystall.report.speedscope:write_speedscope",
        "open {} at https://www.speedscope.app (it stays in your browser)",
    ),
    CurvesFolder(
        "tensorboard",
        _CURVES,
        "whystall.report.tensorboard:event_files",
        extra="tensorboard",
        package="tensorboard",
    ),
    Tracker("mlflow", _CURVES, "whystall.integrations.mlflow:log_run", extra="mlflow", package="mlflow"),
    Tracker("wandb", _CURVES, "whystall.integrations.wandb:log_run", extra="wandb", package="wandb"),
)

REPORT_FORMATS: tuple[ReportFormat, ...] = tuple(export for export in EXPORTS if isinstance(export, ReportFormat))
FORMATS: tuple[str, ...] = tuple(export.name for export in REPORT_FORMATS)


def render(
    report: Report,
    format: str,  # noqa: A002 - the word that users know
    options: Options | None = None,
) -> str:
    """The report in one of ``FORMATS``. Raises ``UsageError`` for others."""
    for export in REPORT_FORMATS:
        if export.name == format:
            return export.render(report, options or Options())
    raise UsageError(f"unknown format {format!r}: choose one of {', '.join(FORMATS)}")


def format_of(filename: str) -> str | None:
    """The format of a file name's suffix.

    >>> format_of("out/report.html"), format_of("report.pdf")
    ('html', None)
    """
    lowered = filename.lower()
    return next((export.name for export in REPORT_FORMATS if lowered.endswith(export.suffixes)), None)
