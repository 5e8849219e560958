"""Reports of guidellm 0.8 (JSON): requests with their intended start, so that lateness is exact.

Prompts and answers stand in the same objects; only the fields below are parsed.
"""

from __future__ import annotations

from typing import Final

import msgspec

from whystall.json_text import NotJsonError, parse_json
from whystall.serving.readers.reader import Source, nanoseconds
from whystall.serving.records import ClientRequest, ClientRun, Part
from whystall.trace.errors import InputError

_MOST: Final = 500_000


class _Timings(msgspec.Struct):
    targeted_start: float | None = None
    resolve_start: float | None = None


class _Info(msgspec.Struct):
    timings: _Timings | None = None


class _Request(msgspec.Struct):
    request_start_time: float | None = None
    request_end_time: float | None = None
    time_to_first_token_ms: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    response_id: str | None = None
    info: _Info | None = None


class _Groups(msgspec.Struct):
    successful: list[_Request] = []
    errored: list[msgspec.Raw] = []
    incomplete: list[msgspec.Raw] = []


class _Benchmark(msgspec.Struct):
    requests: _Groups


class _Report(msgspec.Struct):
    benchmarks: list[_Benchmark] = []


class Guidellm:
    """Reads a report of guidellm."""

    kind = "guidellm"

    def recognizes(self, head: bytes) -> bool:
        """Whether its version is in the head."""
        return head.lstrip().startswith(b"{") and b'"guidellm_version"' in head

    def read(self, source: Source) -> Part:
        """The requests of the first benchmark."""
        try:
            report = parse_json(source.whole(), _Report)
        except NotJsonError:
            raise InputError("guidellm's report is no whole JSON object: was it cut?") from None
        if len(report.benchmarks) > 1:
            source.notes.append("guidellm's report holds several benchmarks: the first is read")
        groups = report.benchmarks[0].requests if report.benchmarks else _Groups()
        asked = groups.successful[:_MOST]
        requests = [request for request in map(_request, asked) if request is not None]
        failed = len(groups.errored) + len(groups.incomplete) + len(asked) - len(requests)
        return Part(self.kind, client=ClientRun(self.kind, tuple(requests), failed))


def _request(row: _Request) -> ClientRequest | None:
    start, end, first = row.request_start_time, row.request_end_time, row.time_to_first_token_ms
    if start is None or end is None or first is None or not end > start:
        return None
    timings = None if row.info is None else row.info.timings
    intended = None if timings is None else timings.targeted_start
    return ClientRequest(
        sent_ns=nanoseconds(start),
        gate_ns=None,
        latency_ns=nanoseconds(end - start),
        ttft_ns=nanoseconds(first / 1e3),
        input_tokens=max(row.prompt_tokens or 0, 0),
        output_tokens=max(row.output_tokens or 0, 0),
        late_ns=None if intended is None else max(nanoseconds(start - intended), 0),
        key=row.response_id,
    )
