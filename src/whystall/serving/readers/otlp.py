"""OpenTelemetry spans of vLLM (``--otlp-traces-endpoint``) as JSON: OTLP requests, or one span a line.

A span ``llm_request`` has the times of one finished request by the server's clocks. Other spans, and all attributes
but those named here, are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from whystall.json_text import NotJsonError, parse_json
from whystall.serving.readers.reader import Source, nanoseconds
from whystall.serving.records import Part, ServerRequest

SPAN: Final = "llm_request"
_MOST: Final = 500_000
_LATENCY: Final = "gen_ai.latency."
_TIMES: Final = (
    "e2e",
    "time_to_first_token",
    "time_in_queue",
    "time_in_model_prefill",
    "time_in_model_decode",
    "time_in_model_inference",
)
_KEY: Final = "gen_ai.request.id"
_PROMPT: Final = "gen_ai.usage.prompt_tokens"
_COMPLETION: Final = "gen_ai.usage.completion_tokens"
ATTRIBUTES: Final = frozenset({_KEY, _PROMPT, _COMPLETION, *(_LATENCY + name for name in _TIMES)})
"""The attributes that are read."""
_LONGEST_KEY: Final = 200


class Otlp:
    """Reads OTLP JSON."""

    kind = "OpenTelemetry spans"

    def recognizes(self, head: bytes) -> bool:
        """Whether it is JSON with spans."""
        return head.lstrip().startswith((b"{", b"[")) and (b'"resourceSpans"' in head or b'"traceId"' in head)

    def read(self, source: Source) -> Part:
        """The requests of all spans ``llm_request``."""
        found: list[ServerRequest] = []
        bad = 0
        for line in source.lines():
            if not line.strip():
                continue
            try:
                spans = list(_spans(parse_json(line)))
            except NotJsonError:
                bad += 1
                continue
            for span in spans:
                request = _request(span)
                if request is not None and len(found) < _MOST:
                    found.append(request)
        if bad:
            source.notes.append(f"lines left out, since they are no JSON: {bad:,}")
        return Part(self.kind, spans=tuple(found))


def _spans(value: Any) -> Iterator[dict[str, Any]]:
    """The spans of an export request, of a list of spans, or the span itself."""
    for one in value if isinstance(value, list) else [value]:
        if not isinstance(one, dict):
            continue
        if "name" in one:
            yield one
        for resource in _dicts(one.get("resourceSpans")):
            for scope in _dicts(resource.get("scopeSpans")):
                yield from _dicts(scope.get("spans"))


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _request(span: dict[str, Any]) -> ServerRequest | None:
    if span.get("name") != SPAN:
        return None
    values = {
        one["key"]: _plain(one.get("value"))
        for one in _dicts(span.get("attributes"))
        if isinstance(one.get("key"), str)
    }
    times = [values.get(_LATENCY + name) for name in _TIMES]
    key = values.get(_KEY)
    if not isinstance(key, str) or not all(isinstance(time, float) and time >= 0 for time in times):
        return None
    e2e, ttft, queue, prefill, decode, inference = (nanoseconds(time) for time in times if isinstance(time, float))
    return ServerRequest(
        key[:_LONGEST_KEY],
        _whole(span.get("startTimeUnixNano")),
        e2e,
        ttft,
        queue,
        prefill,
        decode,
        inference,
        _whole(values.get(_PROMPT)),
        _whole(values.get(_COMPLETION)),
    )


def _plain(value: Any) -> str | float | None:
    """The value of an attribute; whole numbers come as text in OTLP's JSON."""
    if not isinstance(value, dict):
        return None
    if isinstance(number := value.get("doubleValue"), int | float):
        return float(number)
    found = value.get("intValue", value.get("stringValue"))
    return str(found) if isinstance(found, str | int) else None


def _whole(value: object) -> int:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else 0
