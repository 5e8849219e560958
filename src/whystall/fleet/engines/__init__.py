"""Where the same function is mapped over many items: processes of this machine, or Ray's."""

from __future__ import annotations

from whystall.fleet.engines.choice import ENGINES, engine_named
from whystall.fleet.engines.engine import Done, Engine, Work

__all__ = ["ENGINES", "Done", "Engine", "Work", "engine_named"]
