"""The data loaders of a job: how each is made, and how often it was asked for an epoch."""

from __future__ import annotations

from typing import Any, Final

_MOST: Final = 32


class LoadersSeen:
    """Counts; a loader is known by its identity, and where there are very many by how it is made."""

    def __init__(self) -> None:
        self._seen: dict[int, dict[str, Any]] = {}

    def asked(self, loader: Any) -> None:
        """A loader begins to hand out batches."""
        found = _facts(loader)
        own = id(loader)
        if own not in self._seen and len(self._seen) >= _MOST:  # one is made for every epoch, or for every client
            own = next((key for key, seen in self._seen.items() if _made(seen) == found), own)
            if own not in self._seen:
                return
        before = self._seen.get(own, {})
        # Another loader may have been where this one is.
        self._seen[own] = {**found, "epochs": int(before["epochs"]) + 1 if _made(before) == found else 1}

    def told(self) -> list[dict[str, Any]]:
        """What is said of each."""
        return list(self._seen.values())


def _made(seen: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in seen.items() if name != "epochs"}


def _facts(loader: Any) -> dict[str, Any]:
    """Workers, batch size, and how batches come across."""
    return {
        "workers": loader.num_workers,
        "batch_size": loader.batch_size,
        "pin_memory": bool(loader.pin_memory),
        "persistent_workers": bool(loader.persistent_workers),
        "prefetch_factor": loader.prefetch_factor,
    }
