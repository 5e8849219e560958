"""Payloads of a log's records, parsed: events, looks into caches, graph breaks, reasons of recompiles."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import msgspec

from whystall.compilation.metrics import text
from whystall.compilation.results import Place
from whystall.compilation.wording import address_of, first_sentence, hint_of, place_of
from whystall.json_text import NotJsonError, parse_json
from whystall.vocabulary.frames import owner

__all__ = [
    "BrokenAt",
    "CacheRecord",
    "Event",
    "cache_record",
    "event_of",
    "graph_break",
    "latest_reason",
    "torch_version",
]

_OUTCOMES: Final = ("hit", "miss", "bypass", "guard_miss")
_IN_CODE: Final = "Graph break in user code at "
_REASON: Final = "Graph Break Reason:"
_OLD_REASON: Final = "Reason:"
_SKIPPED: Final = "Failed to handle graph break gracefully"
_FRAME: Final = re.compile(r'^\s*File "([^"\n]{1,4096})", line (\d{1,9}), in (\S{1,200})$', re.MULTILINE)
_MOST_FRAMES: Final = 64
_STACK_END: Final = "User code traceback:"


@dataclass(slots=True)
class BrokenAt:
    """One graph break as a compile met it."""

    place: Place | None
    reason: str
    hint: str | None
    page: str | None
    callers: tuple[Place, ...] = ()
    """The lines that called it, the innermost last: where the functions around it resume."""
    called_at: Place | None = None
    """The user's line that led there, where the break is in other code."""


@dataclass(slots=True)
class CacheRecord:
    """One look into a cache."""

    cache: str
    outcome: str
    key: str
    reason: str
    saved_ns: int
    taken_ns: int
    triton: bool
    """Whether the graph has kernels of Triton's."""


class Event(msgspec.Struct):
    """The fields of a chromium event that are read."""

    name: str = ""
    ph: str = ""
    ts: float = 0.0


class _CachePayload(msgspec.Struct):
    """The fields of a cache's record that are read."""

    key: str | None = None
    cache_state: str = ""
    cache_bypass_reason: str | None = None
    time_saved_ns: float | None = None
    time_saved_ms: float | None = None
    forward_time_saved_ms: float | None = None
    backward_time_saved_ms: float | None = None
    time_taken_ns: float | None = None
    triton_bundler_meta: str | None = None


def event_of(payload: bytes) -> Event:
    """The event in a payload; an empty one where there is none."""
    try:
        return parse_json(payload, Event)
    except NotJsonError:
        return Event()


def cache_record(payload: bytes, cache: str, outcome: str) -> CacheRecord | None:
    """The look into a cache that a payload describes; ``outcome`` is what the record's name says, or nothing."""
    try:
        found = parse_json(payload, _CachePayload)
    except NotJsonError:
        found = _CachePayload()
    outcome = outcome if outcome in _OUTCOMES else found.cache_state
    if outcome not in _OUTCOMES:
        return None
    halves_ns = _ns(found.forward_time_saved_ms, 10**6) + _ns(found.backward_time_saved_ms, 10**6)
    return CacheRecord(
        cache=cache,
        outcome="miss" if outcome == "guard_miss" else outcome,
        key=(found.key or "")[:100],
        reason=first_sentence(found.cache_bypass_reason),
        saved_ns=_ns(found.time_saved_ns, 1) or _ns(found.time_saved_ms, 10**6) or halves_ns,
        taken_ns=_ns(found.time_taken_ns, 1),
        triton="triton_" in (found.triton_bundler_meta or "").partition("cached_kernel_names=")[2],
    )


def graph_break(payload: bytes) -> BrokenAt:
    """The graph break that a payload describes."""
    said = payload.decode("utf-8", "replace")
    first, _, rest = said.partition("\n")
    told, _, stack = rest.partition(_STACK_END)
    frames = [(path, place_of(path, int(line), name)) for path, line, name in _FRAME.findall(stack)[-_MOST_FRAMES:]]
    callers = tuple(one for _, one in frames if one is not None)
    own = next((one for path, one in reversed(frames) if owner(path) == "user"), None)
    place = None
    if first.startswith(_IN_CODE):
        path, _, line = first.removeprefix(_IN_CODE).strip().rpartition(":")
        at = place_of(path, int(line) if line.isdecimal() and len(line) < 10 else 0, "")
        place = next((one for one in reversed(callers) if at is not None and str(one) == str(at)), at)
        own = None if owner(path) == "user" else own
    reason = told.removeprefix(_OLD_REASON)
    reason = reason.partition(_REASON)[2] or reason
    skipped = reason.lstrip().startswith(_SKIPPED)
    sentence = first_sentence(reason.partition(_SKIPPED)[2].partition("\n")[2] if skipped else reason)
    return BrokenAt(
        place,
        f"{sentence}{'; the function runs without a graph' * skipped}",
        hint_of(reason),
        address_of(reason),
        callers,
        own,
    )


def latest_reason(payload: bytes) -> str:
    """The guard of the latest version that failed: the first of a list, or a text alone."""
    try:
        found = parse_json(payload)
    except NotJsonError:
        return payload.decode("utf-8", "replace")
    reasons = [one for one in found if isinstance(one, str)] if isinstance(found, list) else [found]
    return reasons[0] if reasons and isinstance(reasons[0], str) else ""


def torch_version(payload: bytes) -> str:
    """The version of torch in a payload."""
    try:
        found = parse_json(payload)
    except NotJsonError:
        return ""
    return text(found.get("pytorch_version"))[:40] if isinstance(found, dict) else ""


def _ns(value: float | None, unit: int) -> int:
    return round(value * unit) if value is not None and 0 <= value * unit < 1 << 53 else 0
