from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pytest

import whystall
from whystall.analysis.results import Host
from whystall.analysis.work_results import Efficiency
from whystall.cli import main
from whystall.diagnosis.finding import Verdict
from whystall.report.schema import Report, Source

if TYPE_CHECKING:
    from pathlib import Path


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


class Cli(Protocol):
    def __call__(self, *arguments: str | Path) -> Outcome: ...


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pyproject.toml of anybody configures a test."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs the command line in this process."""

    def run(*arguments: str | Path) -> Outcome:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


def empty_report(summary: str = "Nothing is slow.") -> Report:
    return Report(
        whystall=whystall.__version__,
        verdict=Verdict(summary=summary, cause=None, gain=None, confidence=1.0),
        source=Source(
            files=[],
            framework=None,
            ranks=[],
            world_size=None,
            events=0,
            dropped=[],
            warnings=[],
            missing_signals=[],
            signals={},
        ),
        devices=[],
        kernels=[],
        kernel_families=[],
        operators=[],
        modules=[],
        phases=[],
        communication=[],
        input=[],
        host=Host(),
        memory=[],
        efficiency=Efficiency(),
        timelines=[],
    )


class FakeApi:
    """Stands in for the public API: remembers how it was called, renders the format's name and the verdict."""

    def __init__(self) -> None:
        self.analyzed: list[tuple[Any, dict[str, Any]]] = []
        self.rendered: list[tuple[str, dict[str, Any]]] = []
        self.report = empty_report()
        self.error: BaseException | None = None

    def analyze(self, paths: Any, **options: Any) -> Report:
        self.analyzed.append((paths, options))
        if self.error is not None:
            raise self.error
        return self.report

    def render(self, report: Report, format: str = "terminal", **options: Any) -> str:  # noqa: A002 - the API's name
        self.rendered.append((format, options))
        return f"<{format}> {report.verdict.summary}"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    fake = FakeApi()
    monkeypatch.setattr(whystall, "analyze", fake.analyze)
    monkeypatch.setattr(whystall, "render", fake.render)
    return fake


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": []}')
    return path
