"""This process's rank and the number of ranks: torch's if it knows them already, else the launcher's."""

from __future__ import annotations

import os
from typing import Any


def rank_of(torch: Any) -> int:
    """This process's rank."""
    distributed = joined(torch)
    return int(distributed.get_rank() if distributed is not None else os.environ.get("RANK", "0"))


def ranks_of(torch: Any) -> int:
    """How many ranks there are."""
    distributed = joined(torch)
    return int(distributed.get_world_size() if distributed is not None else os.environ.get("WORLD_SIZE") or 1)


def joined(torch: Any) -> Any:
    """``torch.distributed`` where this process has joined a group of others, else ``None``."""
    found = getattr(torch, "distributed", None)
    return found if found is not None and found.is_available() and found.is_initialized() else None
