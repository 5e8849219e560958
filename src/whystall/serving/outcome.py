"""The result of a served run, for a report or a program: plain values, without a text of the files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from whystall.serving.cause import Finding, Flag
from whystall.serving.diagnose import diagnose
from whystall.serving.folder import read_run
from whystall.serving.parts import Part, residuals
from whystall.serving.predictions import SelfCheck
from whystall.serving.records import BY_SERVER, BatchLines, QueueReadings, StepParts
from whystall.serving.request_ledger import RequestLedger, middle
from whystall.serving.run_analysis import Analysis, analyze_run
from whystall.serving.scheduler_loop import SchedulerLoop, scheduler_loop
from whystall.serving.server_means import ServerMeans
from whystall.serving.server_words import words_of
from whystall.serving.step_ledger import StepLedger
from whystall.serving.step_model import StepModel
from whystall.trace.files import Limits

__all__ = ["SCHEMA", "Batches", "Outcome", "Placement", "explain_run"]

SCHEMA: Final = "whystall.serving/1"
"""The name of the outcome's form as JSON."""

_MOST_LEDGERS = 10_000


@dataclass(frozen=True, slots=True)
class Placement:
    """How many requests were placed in how many steps, and what did not fit (`membership.Membership`)."""

    requests: int
    of_requests: int
    steps: int
    mismatched_steps: int
    by_sum: int
    foreign: int


@dataclass(frozen=True, slots=True)
class Batches:
    """The lines on batches of SGLang's log. ``waiting`` is the share of lines with a queue, ``cache`` the fullest."""

    prefills: int
    decode_lines: int
    prompt_tokens: int
    cached_tokens: int
    most_running: int
    most_waiting: int
    waiting: float
    cache: float | None
    without_graph: float
    retracted: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A diagnosed run. ``p50`` and ``p99`` are the requests at these ranks of the total time.

    ``slowness`` is the time of all steps over their usual time by the model. ``means_ns`` are the parts' means over all
    requests, ``residuals`` the parts that the sources do not split with the flags that would, ``ledgers`` those of the
    first requests, and ``by_server`` says that these are known by the server alone. Where no file names single
    requests, ``server_means`` has their mean by the server's counters. ``loop`` and ``batches`` are SGLang's.
    """

    headline: str
    blame: str
    sources: tuple[str, ...]
    requests: int
    failed: int
    p50: RequestLedger | None
    p99: RequestLedger | None
    means_ns: Mapping[Part, int]
    residuals: Mapping[Part, str]
    findings: tuple[Finding, ...]
    flags: Mapping[str, Flag]
    steps: StepLedger | None
    model: StepModel | None
    step_parts: StepParts | None
    slowness: float | None
    placement: Placement | None
    check: SelfCheck | None
    notes: tuple[str, ...]
    ledgers: tuple[RequestLedger, ...]
    server_means: ServerMeans | None
    by_server: bool
    loop: SchedulerLoop | None = None
    batches: Batches | None = None


def explain_run(paths: list[Path], limits: Limits | None = None) -> Outcome:
    """The outcome of the files of a run. Raises `InputError` where none of them is of a kind that is read."""
    analysis = analyze_run(read_run(paths, limits))
    found = diagnose(analysis)
    run, ledgers = analysis.run, analysis.ledgers
    server = analysis.settings.server
    words, splits = words_of(server), residuals(server)
    findings = tuple(words.finding(one) for one in found.findings)
    named = {flag for finding in findings for flag in finding.cause.flags}
    return Outcome(
        words.of(found.headline),
        found.blame,
        run.sources,
        len(ledgers),
        0 if run.client is None else run.client.failed,
        middle(ledgers, 0.5) if ledgers else None,
        middle(ledgers, 0.99) if ledgers else None,
        _means(ledgers),
        {part: flag for part, flag in splits.items() if any(part in one.parts for one in ledgers)},
        findings,
        {name: flag for name, flag in words.flags().items() if name in named},
        analysis.steps,
        analysis.model,
        run.step_parts,
        _slowness(analysis),
        _placement(analysis),
        found.check,
        (*run.notes, *analysis.notes, *_failures(analysis)),
        ledgers[:_MOST_LEDGERS],
        analysis.means,
        run.client is not None and run.client.tool == BY_SERVER,
        scheduler_loop(run),
        _batches(run.batches, run.readings),
    )


def _batches(lines: BatchLines | None, readings: QueueReadings | None) -> Batches | None:
    if lines is None or readings is None:
        return None
    fullest = int(readings.kv_permille.max())
    return Batches(
        lines.prefills,
        lines.decodes,
        lines.prompt_tokens,
        lines.cached_tokens,
        int(readings.running.max()),
        int(readings.waiting.max()),
        float((readings.waiting > 0).mean()),
        None if fullest < 0 else fullest / 1000,
        lines.without_graph / max(lines.decodes, 1),
        lines.retracted,
    )


def _means(ledgers: tuple[RequestLedger, ...]) -> dict[Part, int]:
    found = {part: sum(one.parts.get(part, 0) for one in ledgers) for part in Part}
    return {part: round(total / len(ledgers)) for part, total in found.items() if total}


def _placement(analysis: Analysis) -> Placement | None:
    found = analysis.membership
    if found is None:
        return None
    known = sum(one is not None for one in analysis.placed)
    return Placement(known, len(analysis.placed), found.steps, found.mismatched, found.by_sum, found.foreign)


def _slowness(analysis: Analysis) -> float | None:
    """Time of all steps over their usual time: above 1 by what single slow steps add, such as other programs cause."""
    usual, steps = analysis.usual_ns, analysis.run.iterations
    if usual is None or steps is None or not usual.sum():
        return None
    return float(steps.elapsed_ns.sum() / usual.sum())


def _failures(analysis: Analysis) -> tuple[str, ...]:
    client = analysis.run.client
    if client is None or not client.failed:
        return ()
    if client.failed == 1:
        return ("one request failed and is in no ledger",)
    return (f"{client.failed:,} requests failed and are in no ledger",)
