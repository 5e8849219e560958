"""The options of PYTORCH_ALLOC_CONF that decide which memory torch's caching allocator reserves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from whystall.errors import UsageError

__all__ = ["DEFAULT", "MIB", "AllocatorSettings", "parse_settings", "recorded_settings"]

MIB: Final = 1 << 20
_INTERVALS: Final = 16  # of sizes from 1 MiB to 64 GiB, a power of two each
_OPTION: Final = re.compile(r"\s*([A-Za-z0-9_]+)\s*:\s*(\[[^\]]*\]|[^,\[\]]*?)\s*(?:,|$)")


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """The options of the allocator, and the amount of memory.

    ``device_bytes`` is the most that the device gives to torch; ``limit_bytes`` the most that
    ``set_per_process_memory_fraction`` allows, without which torch collects no garbage. `None` is unlimited.
    """

    expandable_segments: bool = False
    max_split_size_bytes: int | None = None
    max_non_split_rounding_bytes: int = 20 * MIB
    large_segment_bytes: int = 20 * MIB
    roundup_power2_divisions: tuple[int, ...] = (0,) * _INTERVALS
    garbage_collection_threshold: float = 0.0
    device_bytes: int | None = None
    limit_bytes: int | None = None

    def divisions(self, size_bytes: int) -> int:
        """Number of parts of the power of two below ``size_bytes``; 0 if sizes are not rounded to such parts."""
        interval = max(size_bytes.bit_length() - 1 - 20, 0)
        return self.roundup_power2_divisions[min(interval, len(self.roundup_power2_divisions) - 1)]


DEFAULT: Final = AllocatorSettings()


def parse_settings(text: str, *, device_bytes: int | None = None, limit_bytes: int | None = None) -> AllocatorSettings:
    """The settings in a value of PYTORCH_ALLOC_CONF (before: PYTORCH_CUDA_ALLOC_CONF). Raises ``UsageError``.

    Options that do not change the reserved memory are ignored.

    >>> parse_settings("expandable_segments:True,max_split_size_mb:64").max_split_size_bytes
    67108864
    >>> parse_settings("roundup_power2_divisions:[256:1,512:2,>:4]").divisions(600 * MIB)
    2
    """
    found: dict[str, Any] = {}
    for name, value in _options(text):
        if name == "expandable_segments":
            found[name] = _boolean(name, value)
        elif name == "max_split_size_mb":
            found["max_split_size_bytes"] = _whole(name, value) * MIB
        elif name in {"max_non_split_rounding_mb", "large_segment_size_mb"}:
            field = "max_non_split_rounding_bytes" if name.startswith("max") else "large_segment_bytes"
            found[field] = _whole(name, value) * MIB
        elif name == "garbage_collection_threshold":
            found[name] = _fraction(name, value)
        elif name == "roundup_power2_divisions":
            found[name] = _divisions(value)
    out = AllocatorSettings(**found, device_bytes=device_bytes, limit_bytes=limit_bytes)
    if out.max_split_size_bytes is not None and out.max_split_size_bytes <= out.large_segment_bytes:
        raise UsageError(f"max_split_size_mb wants more than the {out.large_segment_bytes // MIB} of a large segment")
    return out


def recorded_settings(stored: Mapping[str, Any]) -> AllocatorSettings:
    """The settings in a snapshot's ``allocator_settings``; an odd value counts as not set."""
    split = _amount(stored.get("max_split_size"))
    threshold = stored.get("garbage_collection_threshold")
    divisions = stored.get("roundup_power2_divisions")
    powers = [0] * _INTERVALS
    if isinstance(divisions, Mapping):  # megabytes at which an interval begins, as text
        for index in range(_INTERVALS):
            powers[index] = _amount(divisions.get(str(1 << index))) or 0
    return AllocatorSettings(
        expandable_segments=stored.get("expandable_segments") is True,
        max_split_size_bytes=split or None,
        roundup_power2_divisions=tuple(powers),
        garbage_collection_threshold=threshold if isinstance(threshold, float) and 0 < threshold < 1 else 0.0,
    )


def _amount(value: object) -> int | None:
    """A number of bytes; torch writes an unlimited one as -1 or as the largest there is."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 62 else None


def _options(text: str) -> Iterator[tuple[str, str]]:
    place = 0
    while place < len(text.rstrip()):
        match = _OPTION.match(text, place)
        if match is None:
            raise UsageError(f"cannot read the allocator's settings at {text[place : place + 40]!r}")
        yield match[1], match[2]
        place = match.end()


def _boolean(name: str, value: str) -> bool:
    if value not in {"True", "False"}:
        raise UsageError(f"{name} wants True or False, not {value!r}")
    return value == "True"


def _whole(name: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or len(value) > 12:
        raise UsageError(f"{name} wants a whole number, not {value!r}")
    return int(value)


def _fraction(name: str, value: str) -> float:
    try:
        read = float(value)
    except ValueError:
        read = -1.0
    if not 0 < read < 1:
        raise UsageError(f"{name} wants a fraction between 0 and 1, not {value!r}")
    return read


def _divisions(value: str) -> tuple[int, ...]:
    """One number for all sizes, or ``[256:1,512:2,>:4]``: by the megabytes at which an interval of sizes begins."""
    if not value.startswith("["):
        return (_power(value),) * _INTERVALS
    out = [0] * _INTERVALS
    last = -1
    for pair in value.strip("[]").split(","):
        begin, _, divisions = (part.strip() for part in pair.partition(":"))
        power = _power(divisions)
        if begin == ">":
            out[last + 1 :] = [power] * (_INTERVALS - last - 1)
            break
        index = min(_power(begin).bit_length() - 1, _INTERVALS - 1)
        if last < 0:  # the first holds for all that is smaller, too
            out[:index] = [power] * index
        out[index] = power
        last = index
    return tuple(out)


def _power(value: str) -> int:
    read = _whole("roundup_power2_divisions", value)
    if read == 0 or read & (read - 1):
        raise UsageError(f"roundup_power2_divisions wants powers of two, not {value!r}")
    return read
