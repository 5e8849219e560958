"""The block ``flops_profiler`` of a DeepSpeed configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from whystall.disk import reading
from whystall.errors import InputError, UsageError
from whystall.json_text import parse_json

BLOCK = "flops_profiler"


class FlopsProfilerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys and defaults of DeepSpeed 0.19.8. An unknown key is an error here, where DeepSpeed ignores it."""

    enabled: bool = False
    profile_step: int = 1
    module_depth: int = -1
    top_modules: int = 1
    detailed: bool = True
    output_file: str | None = None
    recompute_fwd_factor: float = 0.0


def read_config(source: str | Path | Mapping[str, Any]) -> FlopsProfilerConfig:
    """The block of a DeepSpeed JSON file, or of its content; the defaults where there is none.

    Raises ``InputError`` for a file that cannot be read and ``UsageError`` for a key or value that makes no sense.

    >>> read_config({"train_batch_size": 8, "flops_profiler": {"enabled": True, "profile_step": 5}}).profile_step
    5
    """
    content = source if isinstance(source, Mapping) else _read(Path(source))
    try:
        return msgspec.convert(content.get(BLOCK, {}), FlopsProfilerConfig)
    except msgspec.ValidationError as error:
        raise UsageError(f"{BLOCK}: {error}") from error


def _read(path: Path) -> Mapping[str, Any]:
    try:
        content = parse_json(reading.text(path))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path} is no valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no table of settings")
    return content
