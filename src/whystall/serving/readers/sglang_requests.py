"""Requests as SGLang exports them (``--export-metrics-to-file``): a JSON object a line, with the request itself.

Only the times and sizes named here are read: ``request_parameters`` is the prompt. Names as
`python/sglang/srt/observability/req_time_stats.py` has them. The decode time is the server's own: tokens over
``decode_throughput``. After a retraction ``queue_time`` is that of the last wait alone.
"""

from __future__ import annotations

from typing import Final

import msgspec

from whystall.json_text import NotJsonError, parse_json
from whystall.serving.readers.reader import Source, nanoseconds
from whystall.serving.records import SGLANG, Part, ServerRequest, Settings

_MOST: Final = 500_000
_MOST_TOKENS: Final = 1e9


class _Record(msgspec.Struct):
    """The fields that are read; the server leaves out those that it does not know."""

    e2e_latency: float | None = None
    request_received_ts: float | None = None
    queue_time: float | None = None
    forward_entry_time: float | None = None
    prefill_finished_time: float | None = None
    inference_time: float | None = None
    decode_throughput: float | None = None
    prompt_tokens: float | None = None
    completion_tokens: float | None = None


class SglangRequests:
    """Reads SGLang's file of finished requests."""

    kind = "SGLang request metrics"

    def recognizes(self, head: bytes) -> bool:
        """Whether the first line is such a record."""
        return head.lstrip().startswith(b'{"request_parameters"')

    def read(self, source: Source) -> Part:
        """The finished requests; those without their times are counted in a note."""
        found: list[ServerRequest] = []
        bad = 0
        for line in source.lines():
            if not line.strip():
                continue
            try:
                request = _request(parse_json(line, _Record), len(found))
            except NotJsonError:
                request = None
            bad += request is None
            if request is not None and len(found) < _MOST:
                found.append(request)
        if bad:
            source.notes.append(
                f"lines left out, since they have no times of a request: {bad:,} (the server needs --enable-metrics)"
            )
        return Part(self.kind, spans=tuple(found), settings=Settings(server=SGLANG))


def _request(record: _Record, place: int) -> ServerRequest | None:
    """The request's phases; ``None`` where one is missing or no time."""
    tokens = _count(record.completion_tokens)
    e2e, received, queue = (_time(one) for one in (record.e2e_latency, record.request_received_ts, record.queue_time))
    if not e2e or received is None or queue is None or not tokens:
        return None
    inference = min(_time(record.inference_time) or e2e - queue, e2e)
    rate = record.decode_throughput
    decode = min(nanoseconds(tokens / rate), e2e - 1) if rate is not None and rate > 0 else 0
    begin, end = _time(record.forward_entry_time), _time(record.prefill_finished_time)
    prefill = end - begin if begin is not None and end is not None else e2e - queue - decode
    prefill = min(max(prefill, 0), inference)
    prompt = _count(record.prompt_tokens)
    return ServerRequest(
        f"{SGLANG}:{place}", received, e2e, e2e - decode, queue, prefill, decode, inference, prompt, tokens
    )


def _time(seconds: float | None) -> int | None:
    """A time in nanoseconds that is no less than nothing."""
    if seconds is None or not seconds >= 0:
        return None
    return nanoseconds(seconds)


def _count(value: float | None) -> int:
    return int(value) if value is not None and 0 <= value < _MOST_TOKENS else 0
