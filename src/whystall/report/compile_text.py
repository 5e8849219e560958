"""The compile account in words: the seconds first, then the causes, then what was compiled, broken and cached."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from whystall.compilation.results import (
    Account,
    Break,
    Compile,
    CompileFinding,
    KernelCompiler,
    Place,
    ProcessAccount,
    Recompile,
)
from whystall.report.document import Document, Heading, Lines, Part, Points, grid
from whystall.report.format import UNKNOWN, duration, plural, share
from whystall.report.names import clean
from whystall.report.tables import Cell

_MOST_ROWS: Final = 15
_MOST_FINDINGS: Final = 10
_LONGEST: Final = 200
_LONGEST_NAME: Final = 60
_LARGE: Final = 0.2
_RESUMES: Final = "torch_dynamo_resume_in_"


def compile_document(account: Account) -> Document:
    """The account as a document; of several processes, the details of the one that compiles longest."""
    first = account.processes[0]
    said = summarize(account)
    parts: list[Part] = [said]
    if account.findings:
        shown = account.findings[:_MOST_FINDINGS]
        more = len(account.findings) - len(shown)
        entries = [_finding(one, len(account.processes)) for one in shown]
        entries += [f"{plural(more, 'further cause')} in --json"] if more else []
        parts += [Heading("Causes, by the seconds that they cost", text="Causes, by the seconds that they cost:")]
        parts.append(Points(tuple(entries)))
    if len(account.processes) > 1:
        parts += [*_processes(account.processes), Heading(f"Details of {_name(first)}", text=f"{_name(first)}:")]
    parts += _details(first)
    parts += [Lines(tuple(clean(note, 300) for note in account.notes[:_MOST_ROWS]), marked=True)]
    return Document("compile", said, tuple(part for part in parts if part not in (Lines(()), Lines((), marked=True))))


def summarize(account: Account) -> str:
    """The answer in one sentence: the time, the largest part of it, recompiles and graph breaks."""
    first = account.processes[0]
    if not first.compiles:
        return f"No compile has an end in these logs: {plural(first.unfinished, 'compile')} began{_where(account)}."
    parts = [f"Compilation took {duration(first.total_ns)} in {plural(_compiles(first), 'compile')}{_where(account)}"]
    kernels_ns = first.phases.kernels_ns
    if kernels_ns > _LARGE * first.total_ns:
        by = _kernels_by(first)
        parts.append(f"{duration(kernels_ns)} of it was {'' if by is KernelCompiler.TRITON else 'the '}{by}")
    if first.recompiles:
        recompiled = _lines(one.line for one in first.recompiles)
        parts.append(f"{plural(first.recompiled, 'recompile')} of {_some(recompiled)}")
    if first.breaks:
        times = sum(one.times for one in first.breaks)
        broken = _lines(one.called_at or one.place for one in first.breaks)
        parts.append(f"{plural(times, 'graph break')} at {_some(broken)}")
    return "; ".join(parts) + "."


def _where(account: Account) -> str:
    if len(account.processes) == 1:
        return ""
    return f" on the slowest of {len(account.processes):,} processes ({_name(account.processes[0])})"


def _name(process: ProcessAccount) -> str:
    rank = "" if process.rank is None else f"rank {process.rank}, "
    return f"{rank}{clean(process.file, _LONGEST_NAME)}"


def _compiles(process: ProcessAccount) -> int:
    return len(process.compiles)


def _kernels_by(process: ProcessAccount) -> KernelCompiler:
    """The program that took most of the time for kernels."""
    sums: dict[KernelCompiler, int] = dict.fromkeys((KernelCompiler.UNKNOWN, *KernelCompiler), 0)
    for one in process.compiles:
        sums[one.kernels_by] += one.phases.kernels_ns
    return max(sums, key=lambda one: sums[one])


def _some(lines: list[str]) -> str:
    shown = ", ".join(lines[:2])
    return f"{shown} and {len(lines) - 2} more" if len(lines) > 2 else shown


def _lines(places: Iterable[Place | None]) -> list[str]:
    """The lines, each once."""
    return list(dict.fromkeys(map(_line, places)))


def _line(place: Place | None) -> str:
    return UNKNOWN if place is None else clean(str(place), _LONGEST_NAME)


def _function(place: Place | None) -> str:
    if place is None:
        return UNKNOWN
    name = place.function
    return clean(f"{name.removeprefix(_RESUMES)} (resumed)" if name.startswith(_RESUMES) else name, _LONGEST_NAME)


def _finding(one: CompileFinding, n_processes: int) -> str:
    where = "" if one.where is None else f" at {one.where}"
    on = f" On {one.processes:,} of {n_processes:,} processes." if n_processes > 1 else ""
    saves = duration(one.saves_ns) if one.saves_ns else "no time recorded:"
    known_by = f"{one.known_by[:1].upper()}{one.known_by[1:]}"
    edit = one.edit.rstrip(".")
    return clean(f"{saves} {one.id}{where}: {one.says}. {known_by}.{on} Edit: {edit}.", 6 * _LONGEST)


def _processes(processes: Sequence[ProcessAccount]) -> Iterator[Part]:
    yield Heading("Processes", text="Processes run side by side: their seconds are never added.")
    rows: list[tuple[str | Cell, ...]] = [
        (
            clean(one.file, _LONGEST_NAME),
            Cell(str(one.rank), one.rank) if one.rank is not None else Cell(UNKNOWN),
            Cell(duration(one.total_ns), one.total_ns),
            Cell(f"{_compiles(one):,}", _compiles(one)),
            Cell(f"{one.recompiled:,}", one.recompiled),
            Cell(f"{sum(broken.times for broken in one.breaks):,}", sum(broken.times for broken in one.breaks)),
        )
        for one in processes[:_MOST_ROWS]
    ]
    more = len(processes) - len(rows)
    notes = (f"and {_times(more, 'process')} more in --json",) if more > 0 else ()
    columns = ("File", "Rank", "Compiles for", "Compiles", "Recompiles", "Graph breaks")
    yield grid("Each process", columns, rows, notes=notes)


def _details(process: ProcessAccount) -> Iterator[Part]:
    if process.compiles:
        yield Heading("Phases", text="")
        yield grid("Time by phase, without the phases inside it", ("Phase", "Time", "Share"), _phases(process))
        yield Heading("Compiles", text="")
        yield grid("Compiles, the longest first", _COLUMNS, _rows(process), notes=_more(len(process.compiles)))
    if process.breaks:
        yield Heading("Graph breaks", text="")
        yield grid("Distinct graph breaks", _BREAK_COLUMNS, map(_break, process.breaks[:_MOST_ROWS]))
    if process.recompiles:
        yield Heading("Recompiles", text="")
        yield grid("Distinct recompiles", _RECOMPILE_COLUMNS, map(_recompile, process.recompiles[:_MOST_ROWS]))
    yield Lines(tuple(_sentences(process)))


def _phases(process: ProcessAccount) -> Iterator[tuple[str | Cell, ...]]:
    phases = process.phases
    for name, ns in (
        ("Dynamo: tracing, guards", phases.dynamo_ns),
        ("AOTAutograd", phases.aot_ns),
        ("Inductor: passes, lowering", phases.inductor_ns),
        ("code generation", phases.code_ns),
        (str(_kernels_by(process)), phases.kernels_ns),
    ):
        if ns:
            yield name, Cell(duration(ns), ns), Cell(share(ns / process.total_ns), ns)
    yield "all", Cell(duration(process.total_ns), process.total_ns), Cell(share(1.0), process.total_ns)


_BREAK_COLUMNS: Final = ("Graph break at", "Times", "Thrown away", "Resumed", "In what resumes", "Reason")
_RECOMPILE_COLUMNS: Final = ("Recompiled", "Line", "Times", "Versions", "Time", "For", "Guard that failed")
_COLUMNS: Final = (
    "Compile",
    "Function",
    "Called at",
    "Attempts",
    "Time",
    "Dynamo",
    "AOT",
    "Inductor",
    "Code",
    "Kernels",
)


def _rows(process: ProcessAccount) -> Iterable[tuple[str | Cell, ...]]:
    for one in sorted(process.compiles, key=lambda one: -one.total_ns)[:_MOST_ROWS]:
        yield (
            clean(f"{one.id}{_marks(one)}", _LONGEST_NAME),
            UNKNOWN if one.frame is None else f"{_function(one.frame)} {_line(one.frame)}",
            _line(one.caller),
            Cell(f"{one.attempts:,}", one.attempts),
            Cell(duration(one.total_ns), one.total_ns),
            _time(one.phases.dynamo_ns),
            _time(one.phases.aot_ns),
            _time(one.phases.inductor_ns),
            _time(one.phases.code_ns),
            _time(one.phases.kernels_ns),
        )


def _marks(one: Compile) -> str:
    marks = ["backward"] * one.backward + ["within another"] * one.nested
    return f" {', '.join(marks)}" if marks else ""


def _time(ns: int) -> Cell:
    return Cell(duration(ns), ns) if ns else Cell(UNKNOWN)


def _more(compiles: int) -> tuple[str, ...]:
    return (f"and {plural(compiles - _MOST_ROWS, 'compile')} more in --json",) if compiles > _MOST_ROWS else ()


def _break(one: Break) -> tuple[str | Cell, ...]:
    called = f" ({_line(one.called_at)})" if one.called_at is not None else ""
    return (
        f"{_line(one.place)}{called}",
        Cell(f"{one.times:,}", one.times),
        _time(one.restarts_ns),
        Cell(f"{one.resumes:,}", one.resumes),
        _time(one.resumes_ns),
        clean(one.reason, _LONGEST),
    )


def _recompile(one: Recompile) -> tuple[str | Cell, ...]:
    return (
        _function(one.frame),
        _line(one.line),
        Cell(f"{one.times:,}", one.times),
        Cell(f"{one.versions:,}{', the limit' if one.at_limit else ''}", one.versions),
        _time(one.total_ns),
        one.kind,
        clean(one.guard, _LONGEST),
    )


def _sentences(process: ProcessAccount) -> Iterator[str]:
    if process.restarts_ns:
        yield f"Attempts that a restart threw away took {duration(process.restarts_ns)}, as a part of the total."
    for use in process.caches:
        reasons = "; ".join(f"{clean(reason, _LONGEST)} ({times})" for reason, times in use.bypass_reasons)
        bypassed = f", {_times(use.bypasses, 'bypass')}: {reasons}" if use.bypasses else ""
        yield f"{use.cache} cache: {plural(use.hits, 'hit')}, {_times(use.misses, 'miss')}{bypassed}."
    if process.saved_ns is not None:
        yield f"The hits saved {duration(process.saved_ns)}, as torch estimates it."
    for failure in process.failures[:_MOST_ROWS]:
        again = f" ({failure.times} times)" if failure.times > 1 else ""
        yield (
            f"{_function(failure.frame)} at {_line(failure.frame)} runs without a graph{again}: "
            f"{clean(failure.kind, _LONGEST_NAME)}, {clean(failure.reason, _LONGEST)}"
        )
    graphs = process.cuda_graphs
    if graphs.recordings:
        yield f"CUDA graphs were recorded {graphs.recordings} times, {duration(graphs.recording_ns)} in all."
    for reason, times in graphs.skips:
        yield f"No CUDA graph was made ({times} times): {clean(reason, _LONGEST)}"
    if process.autotune_ns:
        yield f"Autotuning took {duration(process.autotune_ns)}, within compiles and after them."
    if process.unfinished:
        yield f"{plural(process.unfinished, 'compile')} began and have no end in the log."


def _times(times: int, noun: str) -> str:
    return f"{times:,} {noun}{'es' * (times != 1)}"
