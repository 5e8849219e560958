"""The DeepSpeed configuration of a command: its settings of ZeRO, and copies of it with other settings.

The user's file is read and never written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from whystall.disk import reading
from whystall.json_text import parse_json
from whystall.verify.tune.results import Settings

ZERO_SETTINGS: Final = ("zero_stage", "offload")
_ZERO: Final = "zero_optimization"
_OFFLOADS_OF_PARAMETERS: Final = ("offload_param", "cpu_offload_params")
_OFFLOADS: Final = ("offload_optimizer", "cpu_offload", *_OFFLOADS_OF_PARAMETERS)
_OF_PARAMETERS: Final = 3  # the stage in which parameters are shared, and may lie elsewhere
# A file with one of these is DeepSpeed's: it refuses a configuration without a batch size.
_KEYS: Final = ("train_batch_size", "train_micro_batch_size_per_gpu", _ZERO)
_LARGEST: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Config:
    """A configuration, at its word of the command; ``option`` is the text before it there."""

    at: int
    option: str
    document: dict[str, Any]

    @property
    def stage(self) -> int:
        """ZeRO's stage: 0 where there is none."""
        stage = self._zero.get("stage", 0)
        return stage if isinstance(stage, int) else 0

    @property
    def offloads(self) -> bool:
        """Whether parameters or the optimizer's state lie outside of the device."""
        return any(_is_on(self._zero.get(name)) for name in _OFFLOADS)

    @property
    def _zero(self) -> dict[str, Any]:
        found = self.document.get(_ZERO)
        return found if isinstance(found, dict) else {}

    def seen(self) -> dict[str, Any]:
        """Its settings, as input for candidates."""
        return {"stage": self.stage, "offload": self.offloads}

    def copy(self, settings: Settings) -> str:
        """The file's text with other settings and all else unchanged."""
        zero = dict(self._zero)
        if "zero_stage" in settings:
            zero["stage"] = int(settings["zero_stage"])
        stage = zero.get("stage", 0)
        gone: tuple[str, ...] = _OFFLOADS if settings.get("offload") == "none" or not stage else ()
        if "zero_stage" in settings and stage < _OF_PARAMETERS:
            gone += _OFFLOADS_OF_PARAMETERS
        zero = {name: value for name, value in zero.items() if name not in gone}
        return json.dumps(self.document | {_ZERO: zero}, indent=1) + "\n"


def _is_on(offload: Any) -> bool:
    return offload.get("device", "none") not in (None, "none") if isinstance(offload, dict) else bool(offload)


def config_of(command: Sequence[str]) -> Config | None:
    """The configuration that a command names: ``--deepspeed_config ds.json``, ``--deepspeed=ds.json`` and the like."""
    for at, word in enumerate(command):
        option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
        document = _read(value) if value.endswith(".json") else None
        if document is not None:
            return Config(at, option + equals, document)
    return None


def with_config(command: Sequence[str], config: Config | None, settings: Settings, path: Path) -> list[str]:
    """The command with a copy of its configuration at ``path``, if settings belong to that.

    >>> with_config(["ds", "--deepspeed=my.json"], Config(1, "--deepspeed=", {}), {"zero_stage": 1}, Path("new.json"))
    ['ds', '--deepspeed=new.json']
    """
    words = list(command)
    if config is not None and changes(settings):
        words[config.at] = f"{config.option}{path}"
    return words


def changes(settings: Settings) -> bool:
    """Whether some of the settings belong to the configuration."""
    return any(name in settings for name in ZERO_SETTINGS)


def _read(name: str) -> dict[str, Any] | None:
    try:
        if Path(name).stat().st_size > _LARGEST:
            return None
        found = parse_json(reading.content(Path(name)))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and any(key in found for key in _KEYS) else None
