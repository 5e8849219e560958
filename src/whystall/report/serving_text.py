"""The report on a served run as a document: whose fault it is, two requests, the engine's steps, the findings."""

from __future__ import annotations

from collections.abc import Iterator

from whystall.report.document import Document, Grid, Heading, Lines, Part, Points, grid
from whystall.report.format import UNKNOWN, count, duration, plural, quantity, share
from whystall.report.names import clean
from whystall.report.tables import Cell
from whystall.serving.cause import Evidence, Finding
from whystall.serving.outcome import Batches, Outcome
from whystall.serving.parts import TITLES
from whystall.serving.parts import Part as RequestPart
from whystall.serving.predictions import Prediction, SelfCheck
from whystall.serving.request_ledger import RequestLedger
from whystall.serving.scheduler_loop import SchedulerLoop
from whystall.serving.server_means import ServerMeans

_LONGEST_NOTE = 300
_MOST_NOTES = 16
_NOTABLY_SLOW = 1.1  # below it single slow steps are no part of the picture
_METRICS = {"ttft": "time to first token", "tpot": "time per output token", "e2e": "whole request"}


def serving_document(found: Outcome) -> Document:
    """The document."""
    parts: list[Part] = [clean(found.headline, 1000), Lines(tuple(_facts(found)))]
    if found.p50 is not None and found.p99 is not None:
        parts += [Heading("A request's time"), _requests(found, found.p50, found.p99)]
        parts.append(Lines(tuple(_residuals(found))))
    if found.server_means is not None:
        parts += [Heading("A request's time at the server"), _server_means(found.server_means)]
    if found.steps is not None:
        parts += [Heading("The engine's steps"), _steps(found), Lines(tuple(_engine(found)))]
    if found.loop is not None:
        parts += [Heading("The scheduler's loop"), *_loop(found.loop)]
    if found.batches is not None:
        parts.append(Lines(tuple(_batches(found.batches))))
    for number, finding in enumerate(found.findings, start=1):
        parts += list(_finding(number, finding, found))
    if found.findings and found.check is not None:
        parts.append(Lines((_checked(found.check),)))
    if found.notes:
        parts.append(Lines(tuple(clean(note, _LONGEST_NOTE) for note in found.notes[:_MOST_NOTES]), marked=True))
    return Document("serve", clean(found.headline, 1000), tuple(part for part in parts if part != Lines(())))


def _facts(found: Outcome) -> Iterator[str]:
    failed = f", {count(found.failed)} failed" if found.failed else ""
    requests = plural(found.requests, "request")
    if found.server_means is not None:
        requests = f"{plural(found.server_means.requests, 'request')} by the server's count"
    if found.by_server:
        requests = f"{requests} by the server's spans, without HTTP and waits of a client"
    yield f"{requests}{failed}; read: {', '.join(found.sources)}."
    placed = found.placement
    if placed is not None and placed.requests:
        yield (
            f"{count(placed.requests)} of {count(placed.of_requests)} requests are placed in {count(placed.steps)} "
            f"engine steps; {count(placed.mismatched_steps)} steps do not fit."
        )


def _requests(found: Outcome, median: RequestLedger, tail: RequestLedger) -> Grid:
    rows = [
        (
            TITLES[part],
            _time(median.parts.get(part, 0)),
            _time(tail.parts.get(part, 0)),
            _time(found.means_ns.get(part, 0)),
        )
        for part in RequestPart
        if part in median.parts or part in tail.parts or part in found.means_ns
    ]
    total = sum(found.means_ns.values())
    rows.append(("sum", _time(median.total_ns), _time(tail.total_ns), _time(total)))
    clock = "server" if found.by_server else "client"
    rows.append((f"time to first token, by the {clock}", _time(median.ttft_ns), _time(tail.ttft_ns), Cell(UNKNOWN)))
    rows.append(("prompt and output tokens", _sizes(median), _sizes(tail), Cell(UNKNOWN)))
    begin = "arrival at the server" if found.by_server else "intended send"
    head = f"From the {begin} to the last token, of single requests at the median and the 99th percentile"
    labels = ("Part", "p50 request", "p99 request", "mean of all")
    return grid(head, labels, rows)


def _server_means(means: ServerMeans) -> Grid:
    """The mean request, whose parts add up to its time."""
    rows = [
        (TITLES[part], _time(time), Cell(share(time / max(means.total_ns, 1)))) for part, time in means.parts.items()
    ]
    rows.append(("sum", _time(means.total_ns), Cell(UNKNOWN)))
    rows.append(("time to first token", _time(means.ttft_ns), Cell(UNKNOWN)))
    sizes = f"{quantity(means.prompt_tokens)} + {quantity(means.output_tokens)}"
    rows.append(("prompt and output tokens", Cell(sizes), Cell(UNKNOWN)))
    head = f"From its arrival at the server to its last token, mean of {plural(means.requests, 'request')}"
    return grid(head, ("Part", "mean", "share"), rows)


def _time(value: int) -> Cell:
    return Cell(duration(value) if value else "-", value)


def _sizes(one: RequestLedger) -> Cell:
    return Cell(f"{count(one.input_tokens)} + {count(one.output_tokens)}")


def _residuals(found: Outcome) -> Iterator[str]:
    for part, flag in found.residuals.items():
        yield f"{TITLES[part][:1].upper()}{TITLES[part][1:]} cannot be split by these files: {flag} records it."


def _steps(found: Outcome) -> Grid:
    steps = found.steps
    rows = [
        (
            one.kind.value,
            Cell(count(one.count), one.count),
            _time(one.total_ns),
            _time(one.median_ns),
            _time(one.longest_ns),
            Cell(quantity(one.prompt_tokens), one.prompt_tokens),
            Cell(quantity(one.sequences), one.sequences),
        )
        for one in (steps.kinds if steps is not None else ())
    ]
    labels = ("Kind", "steps", "time", "median", "longest", "prompt tokens", "sequences")
    return grid("Steps by kind, with their mean composition", labels, rows)


def _engine(found: Outcome) -> Iterator[str]:
    steps, model = found.steps, found.model
    if steps is not None and steps.window_ns is not None:
        yield (
            f"Of {duration(steps.window_ns)} the engine spent {duration(steps.busy_ns)} in steps, "
            f"{duration(steps.gap_ns)} between them, and {duration(steps.idle_ns)} without a request."
        )
    if model is not None:
        yield (
            f"A step takes {duration(round(model.step_ns))}, {duration(round(model.token_ns))} for each prompt token "
            f"and {duration(round(model.sequence_ns))} for each sequence (median deviation {share(model.error)} of "
            f"{plural(model.steps, 'step')})."
        )
    if found.slowness is not None and found.slowness >= _NOTABLY_SLOW:
        yield f"Single slow steps make all of them {quantity(found.slowness)} times as long as usual ones would be."
    parts = found.step_parts
    if parts is not None:
        yield (
            f"By the worker's trace of {plural(parts.steps, 'step')}, in the median: forward pass "
            f"{duration(parts.forward_ns)}, choice of tokens {duration(parts.choosing_ns)}, engine until the next step "
            f"{duration(parts.engine_ns)}."
        )


def _loop(loop: SchedulerLoop) -> Iterator[Part]:
    """The loop by stage, and the device's time in it."""
    if loop.stages_ns:
        rows = [
            (clean(name.replace("_", " "), 40), _time(time), Cell(share(time / loop.total_ns)))
            for name, time in loop.stages_ns.items()
        ]
        yield grid("The scheduler's own wall time by stage", ("Stage", "time", "share"), rows)
    if loop.device_ns:
        each = ", ".join(f"{clean(name, 40)} {duration(time)}" for name, time in loop.device_ns.items())
        yield Lines((f"Forward passes on the device: {each}.",))


def _batches(found: Batches) -> Iterator[str]:
    total = max(found.prompt_tokens + found.cached_tokens, 1)
    yield (
        f"Prefill batches in the log: {count(found.prefills)}, with {count(found.prompt_tokens)} "
        f"prompt tokens, beside {share(found.cached_tokens / total)} from the cache, and "
        f"{plural(found.decode_lines, 'line')} on decoding."
    )
    cache = "" if found.cache is None else f", {share(found.cache)} of the cache"
    yield (
        f"At most {plural(found.most_running, 'request')} run and {count(found.most_waiting)} wait{cache}; "
        f"{share(found.waiting)} of the lines have a queue."
    )
    if found.retracted:
        yield f"Retracted for want of cache: {plural(found.retracted, 'request')}."
    if found.without_graph:
        yield f"Decoding without a graph of the device: {share(found.without_graph)} of the lines."


def _finding(number: int, finding: Finding, found: Outcome) -> Iterator[Part]:
    cause = finding.cause
    sure = "" if finding.certain else ", perhaps"
    yield Heading(
        f"{number}. {cause.title}",
        text=f"{number}. {cause.title} ({cause.id}, {cause.blame}{sure}): {share(finding.share)} of a request's time",
    )
    if number > 1:
        yield clean(finding.headline, 1000)
    yield Points(tuple(f"{one.what}: {_value(one)}" for one in finding.evidence))
    yield Points((f"Remedy: {finding.remedy}", *_flags(finding, found)))
    if finding.prediction is not None:
        yield _prediction(finding.prediction)


def _value(one: Evidence) -> str:
    if one.unit == "ns":
        return duration(round(one.value))
    if one.unit == "share":
        return share(one.value)
    return count(round(one.value)) if one.unit in {"count", "tokens"} else quantity(one.value)


def _flags(finding: Finding, found: Outcome) -> Iterator[str]:
    for name in finding.cause.flags:
        if name in found.flags:
            flag = found.flags[name]
            yield f"{name}: {flag.does}. It costs: {flag.costs}."


def _prediction(prediction: Prediction) -> Grid:
    rows = [
        (
            f"{_METRICS[one.name]}, p{one.percentile}",
            _time(one.before_ns),
            _time(one.after_ns),
            Cell(f"{duration(one.low_ns)} to {duration(one.high_ns)}"),
            Cell(one.verdict),
        )
        for one in prediction.metrics
    ]
    notes: tuple[str, ...] = ()
    if any(prediction.preemptions):
        notes = (f"Preemptions: {count(prediction.preemptions[0])} as it is, {count(prediction.preemptions[1])} then.",)
    head = f"Replayed with {prediction.change}"
    labels = ("Metric", "as it is", "then", "interval", "")
    table = grid(head, labels, rows, notes=notes)
    return Grid(table.table, table.notes, text_head=f"{head}:")


def _checked(check: SelfCheck) -> str:
    e2e = check.metric("e2e", 50)
    said = (
        f"Self-check of the replay: the run as it was comes out at {duration(e2e.after_ns)} for the median request, "
        f"measured {duration(e2e.before_ns)} ({share(check.error)} off)."
    )
    return said if check.is_trusted else f"{said} That is too far off to predict a change."
