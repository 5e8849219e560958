"""Top-level metadata of a Kineto trace: the raw values that the scanner kept, parsed leniently."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from typing import Any

from whystall.run_folder.layout import WHOLE_STEPS
from whystall.trace.metadata import MOST_RANKS, DeviceProperties, Metadata, ProcessGroup, sound_text

_LONGEST_TEXT = 1000  # characters of a name
_SETTINGS = ("record_shapes", "profile_memory", "with_stack", "with_modules", "with_flops")
_NOT_JSON_NUMBER = re.compile(r"(?<=[:\[,])(\s*)(-?(?:inf|nan|Infinity|NaN)|N/A)(?=\s*[,\]}])")


def parse_metadata(kept: Sequence[tuple[str, bytes]]) -> Metadata:
    """Metadata from the raw top-level values that the scanner kept. Values that do not parse are left out."""
    values = {key: _lenient(raw) for key, raw in kept}
    info = values.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    return Metadata(
        devices=tuple(_devices(values.get("deviceProperties"))),
        rank=_rank(info.get("rank")),
        world_size=_ranks(info.get("world_size")),
        backend=_text(info.get("backend")),
        groups=tuple(_groups(info.get("pg_config"))),
        base_time_ns=_integer(values.get("baseTimeNanoseconds")),
        whole_steps=_integer(values.get(WHOLE_STEPS)),
        settings={key: bool(values[key]) for key in _SETTINGS if isinstance(values.get(key), int)},
        versions={
            key: sound_text(str(values[key])) for key in values if key.endswith("_version") and _is_plain(values[key])
        },
    )


def _lenient(raw: bytes) -> Any:
    text = raw.decode("utf-8", "replace")
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text, strict=False)  # noqa: TID251 - Kineto writes control characters
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(_NOT_JSON_NUMBER.sub(r"\1null", text), strict=False)  # noqa: TID251
    return None


def _is_plain(value: Any) -> bool:
    return isinstance(value, int | float | str) and len(str(value)) < 64


def _integer(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None


def _rank(value: Any) -> int | None:
    number = _integer(value)
    return number if number is not None and 0 <= number < MOST_RANKS else None


def _ranks(value: Any) -> int | None:
    """How many ranks there are."""
    number = _integer(value)
    return number if number is not None and 0 < number <= MOST_RANKS else None


def _text(value: Any) -> str | None:
    return sound_text(value)[:_LONGEST_TEXT] if isinstance(value, str) and value else None


def _devices(value: Any) -> list[DeviceProperties]:
    if not isinstance(value, list):
        return []
    out = []
    for entry in value:
        device = _integer(entry.get("id")) if isinstance(entry, dict) else None
        if device is None:
            continue
        major, minor = _integer(entry.get("computeMajor")), _integer(entry.get("computeMinor"))
        out.append(
            DeviceProperties(
                id=device,
                name=_text(entry.get("name")),
                memory_bytes=_integer(entry.get("totalGlobalMem")),
                compute_capability=None if major is None or minor is None else (major, minor),
                multiprocessors=_integer(entry.get("numSms")),
            )
        )
    return out


def _groups(value: Any) -> list[ProcessGroup]:
    if not isinstance(value, list):
        return []
    out = []
    for entry in value:
        if not isinstance(entry, dict) or (name := entry.get("pg_name")) is None:
            continue
        ranks = entry.get("ranks")
        members = [_rank(rank) for rank in ranks] if isinstance(ranks, list) else []
        out.append(
            ProcessGroup(
                name=sound_text(str(name))[:_LONGEST_TEXT],
                description=_text(entry.get("pg_desc")),
                size=_ranks(entry.get("pg_size")),
                ranks=tuple(rank for rank in members if rank is not None),
            )
        )
    return out
