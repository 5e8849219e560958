"""Results of ``vllm bench serve --save-result --save-detailed`` and of ``sglang.bench_serving --output-details``.

Both write one object of lists that run beside each other. Texts and tracebacks in it are parsed and dropped.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Final

import msgspec

from whystall.json_text import NotJsonError, parse_json
from whystall.serving.readers.reader import Source, nanoseconds
from whystall.serving.records import ClientRequest, ClientRun, Part
from whystall.trace.errors import InputError

_MOST_REQUESTS: Final = 500_000
_NAN: Final = ((b": NaN", b": null"), (b": Infinity", b": null"), (b": -Infinity", b": null"))


class _Lists(msgspec.Struct):
    """The fields that are read."""

    ttfts: list[float] = []
    itls: list[list[float]] = []
    latencies: list[float] = []
    start_times: list[float] = []
    queue_times: list[float] = []
    input_lens: list[int] = []
    output_lens: list[int] = []
    errors: list[Any] = []
    max_concurrency: float | None = None
    failed: int = 0


class Bench:
    """Reads the result of a benchmark client of vLLM or SGLang."""

    kind = "benchmark result"

    def recognizes(self, head: bytes) -> bool:
        """Whether the scalars that both write are in the head."""
        return (
            head.lstrip().startswith(b"{")
            and b'"backend"' in head
            and (b'"total_input_tokens"' in head or b'"request_throughput"' in head)
        )

    def read(self, source: Source) -> Part:
        """The requests that succeeded."""
        lists = _parsed(source.whole())
        count = min(len(lists.ttfts), len(lists.output_lens), len(lists.input_lens), _MOST_REQUESTS)
        if count == 0:
            source.notes.append(
                "the client's result has no list of requests: --save-detailed (vLLM) or --output-details (SGLang) "
                "adds it"
            )
        failed = {i for i in range(count) if i < len(lists.errors) and lists.errors[i]}
        kept = [i for i in range(count) if i not in failed and _latency(lists, i) > 0]
        requests = tuple(_request(lists, i) for i in kept)
        if requests and not lists.queue_times:
            source.notes.append(
                "the client's result lacks queue_times (vLLM's client of 2026 and later writes them): a wait in the "
                "client before sending is not visible"
            )
        concurrency = None if lists.max_concurrency is None else int(lists.max_concurrency)
        run = ClientRun(self.kind, requests, count - len(kept), concurrency, tuple(kept))
        return Part(self.kind, client=run)


def _parsed(body: bytes) -> _Lists:
    """The last object of the file: SGLang's client appends one line a run. Raises `InputError`."""
    lines = [line for line in body.splitlines() if line.strip()] if b"\n{" in body.strip() else [body]
    last = lines[-1] if lines else b""
    for old, new in _NAN:
        last = last.replace(old, new)
    try:
        return parse_json(last, _Lists)
    except NotJsonError:
        raise InputError("the client's result is no whole JSON object: was it cut?") from None


def _latency(lists: _Lists, i: int) -> int:
    """From sending to the last token: as the client gives it, else the sum of the times between chunks."""
    if i < len(lists.latencies):
        return nanoseconds(lists.latencies[i])
    between = lists.itls[i] if i < len(lists.itls) else []
    return nanoseconds(lists.ttfts[i] + sum(between))


def _request(lists: _Lists, i: int) -> ClientRequest:
    between = lists.itls[i] if i < len(lists.itls) else []
    tokens = tuple(accumulate((nanoseconds(gap) for gap in between), initial=nanoseconds(lists.ttfts[i])))
    return ClientRequest(
        sent_ns=nanoseconds(lists.start_times[i]) if i < len(lists.start_times) else None,
        gate_ns=nanoseconds(lists.queue_times[i]) if i < len(lists.queue_times) else None,
        latency_ns=_latency(lists, i),
        ttft_ns=nanoseconds(lists.ttfts[i]),
        input_tokens=max(lists.input_lens[i], 0),
        output_tokens=max(lists.output_lens[i], 0),
        token_ns=tokens,
        key=str(i),
    )
