"""Finds the files of a served run by their content, and unites what they say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from whystall.serving.readers.reader import Source
from whystall.serving.readers.registry import reader_of
from whystall.serving.records import (
    BY_SERVER,
    Arrival,
    ClientRequest,
    ClientRun,
    Part,
    ServedRun,
    ServerRequest,
    Settings,
)
from whystall.trace.errors import InputError
from whystall.trace.files import Limits, head_of

_MOST_FILES: Final = 200
_COUNTED: Final = "request_success"


def read_run(paths: Sequence[Path], limits: Limits | None = None) -> ServedRun:
    """The served run in folders and files. Raises `InputError` where none of them is of a kind that is read."""
    parts: list[Part] = []
    notes: list[str] = []
    files = list(_files(paths, notes))
    for path in files:
        part = _read(path, limits or Limits(), notes)
        if part is not None:
            parts.append(part)
    if not parts:
        raise InputError(
            "no file of a served run is here: a log of vLLM or SGLang, /metrics before and after, a result of vllm "
            "bench serve, sglang.bench_serving, guidellm or aiperf, arrivals (timed_trace), OTLP spans, SGLang's "
            "request metrics, or a worker's trace" + "".join(f"; {note}" for note in notes[:3])
        )
    return _united(parts, notes)


def _files(paths: Sequence[Path], notes: list[str]) -> Iterable[Path]:
    for path in paths:
        if not path.is_dir():
            if not path.exists():
                raise InputError(f"{path}: no such file or folder")
            yield path
            continue
        try:
            inside = sorted(entry for entry in path.iterdir() if entry.is_file())
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
        if len(inside) > _MOST_FILES:
            notes.append(f"the folder holds {len(inside):,} files: the first {_MOST_FILES} by name are read")
        yield from inside[:_MOST_FILES]


def _read(path: Path, limits: Limits, notes: list[str]) -> Part | None:
    """The content of a file; ``None`` where it is of no kind that is read, or damaged beyond use, which is noted."""
    try:
        reader = reader_of(head_of(path).content)
    except InputError as error:
        notes.append(_without_path(error, path))
        return None
    if reader is None:
        return None
    own: list[str] = []
    try:
        part = reader.read(Source(path, limits, own))
    except InputError as error:
        own.append(_without_path(error, path))
        part = None
    notes += [f"{reader.kind}: {note}" for note in own]
    return part


def _without_path(error: InputError, path: Path) -> str:
    """The sentence of an error, with the file's name in place of its path."""
    return str(error).replace(str(path), path.name)


def _united(parts: Sequence[Part], notes: list[str]) -> ServedRun:
    clients = sorted((part.client for part in parts if part.client), key=lambda run: -len(run.requests))
    steps = sorted((part.iterations for part in parts if part.iterations), key=len)
    arrivals = max((part.arrivals for part in parts), key=len)
    if len(clients) > 1:
        notes.append("several results of clients are here: the one with most requests is read")
    if len(steps) > 1:
        notes.append(
            f"{len(steps)} logs with engine steps are here: the longest is read, and requests of another engine are in "
            "none of its steps"
        )
    spans = tuple(span for part in parts for span in part.spans)
    log = max(parts, key=_reads)
    run = ServedRun(
        sources=tuple(dict.fromkeys(part.kind for part in parts)),
        arrivals=arrivals,
        client=_with_lateness(clients[0], arrivals) if clients else _by_server(spans),
        spans=spans,
        iterations=steps[-1] if steps else None,
        step_parts=next((part.step_parts for part in parts if part.step_parts is not None), None),
        settings=_settings(parts),
        engines=max(part.engines for part in parts),
        waiting=tuple(count for part in parts for count in part.waiting),
        readings=log.readings,
        batches=log.batches,
    )
    return replace(_with_metrics(run, parts, notes), notes=tuple(notes))


def _reads(part: Part) -> tuple[bool, int]:
    """The order of files with readings of the queue: logs with batches before series of gauges, longer ones first."""
    return part.batches is not None, 0 if part.readings is None else len(part.readings)


def _by_server(spans: Sequence[ServerRequest]) -> ClientRun | None:
    """The requests as the server's spans have them, where no client's result is here."""
    found = [
        ClientRequest(
            sent_ns=span.arrived_ns,
            gate_ns=None,
            latency_ns=span.e2e_ns,
            ttft_ns=span.ttft_ns,
            input_tokens=span.input_tokens,
            output_tokens=span.output_tokens,
            key=span.key.removesuffix("-0"),
        )
        for span in sorted(spans, key=lambda one: one.arrived_ns)
        if 0 < span.ttft_ns <= span.e2e_ns and span.output_tokens
    ]
    return ClientRun(BY_SERVER, tuple(found)) if found else None


def _with_metrics(run: ServedRun, parts: Sequence[Part], notes: list[str]) -> ServedRun:
    """The run with the first and the last reading of ``/metrics``, by what they counted."""
    readings = [part.metrics for part in parts if part.metrics is not None]
    if not readings:
        return run
    readings.sort(key=lambda one: (one.values.get(_COUNTED, 0.0), one.values.get("prompt_tokens", 0.0)))
    before, after = readings[0], readings[-1]
    if before is after:
        notes.append("only one reading of /metrics is here: one from before the load makes differences possible")
        return replace(run, after=after)
    if before.created_s != after.created_s:
        notes.append("the two readings of /metrics are of different server processes: only the later is used")
        return replace(run, after=after)
    return replace(run, before=before, after=after)


def _settings(parts: Sequence[Part]) -> Settings:
    """The first known value of each setting, logs before metrics."""
    ordered = [part.settings for part in sorted(parts, key=lambda one: one.metrics is not None)]
    united = {
        name: next((value for settings in ordered if (value := getattr(settings, name)) is not None), None)
        for name in Settings.__slots__
    }
    return Settings(**united)


def _with_lateness(client: ClientRun, arrivals: Sequence[Arrival]) -> ClientRun:
    """The run with each request's lateness: how much later than intended its client took it up."""
    if not client.positions or client.positions[-1] >= len(arrivals):
        return client
    pairs = [(request, arrivals[place]) for request, place in zip(client.requests, client.positions, strict=True)]
    if any(request.sent_ns is None or request.gate_ns is None for request, _ in pairs):
        return client
    if any(request.input_tokens != arrival.input_tokens for request, arrival in pairs):
        return client  # the file is of another run
    taken_up = [(request.sent_ns or 0) - (request.gate_ns or 0) - arrival.at_ns for request, arrival in pairs]
    first = min(taken_up)
    return replace(
        client,
        requests=tuple(_late(request, moment - first) for (request, _), moment in zip(pairs, taken_up, strict=True)),
    )


def _late(request: ClientRequest, late_ns: int) -> ClientRequest:
    return replace(request, late_ns=late_ns)
