"""The data loaders of a job: how each is made, its number of epochs, and the batches it handed out."""

from __future__ import annotations

import sys
from types import CodeType
from typing import Any, Final

from whystall.capture.faults import is_the_jobs
from whystall.capture.stacks import is_library
from whystall.capture.tally import Place

_MOST: Final = 32
_CALL: Final = "__call__"
_COUNTED: Final = frozenset({"epochs", "batches", "taken"})


class LoadersSeen:
    """Counts; a loader is known by its identity, and where there are very many by how it is made."""

    def __init__(self) -> None:
        self._seen: dict[int, dict[str, Any]] = {}
        self._latest: dict[str, Any] = {}
        self._first_batches = 0
        self.packages: set[str] = set()
        """Where the classes of data sets come from."""
        self.maker: Place | None = None
        """The user's function that puts the batches of the loader that was begun last together, if there is one."""

    @property
    def is_new(self) -> bool:
        """Whether a worker of the loader that was begun last may not have handed out its first batch yet."""
        return self._first_batches > 0

    def asked(self, loader: Any) -> None:
        """A loader begins to hand out batches."""
        self._first_batches = max(loader.num_workers, 1)
        self.packages.add(type(getattr(loader, "dataset", None)).__module__.partition(".")[0])
        self.maker = _maker(loader)
        found = _facts(loader)
        own = id(loader)
        if own not in self._seen and len(self._seen) >= _MOST:  # one is made for every epoch, or for every client
            own = next((key for key, seen in self._seen.items() if _made(seen) == found), own)
            if own not in self._seen:
                return
        before = self._seen.get(own, {})
        if _made(before) == found:
            before["epochs"] += 1
        else:  # another loader may have been where this one is
            self._seen[own] = {**found, "epochs": 1, "batches": _length(loader), "taken": 0}
        self._latest = self._seen[own]

    def handed_out(self) -> None:
        """A batch has come: of the loader that was begun last, as far as is known."""
        self._first_batches = max(self._first_batches - 1, 0)
        if self._latest:
            self._latest["taken"] += 1

    def told(self) -> list[dict[str, Any]]:
        """The description of each."""
        return list(self._seen.values())


def _made(seen: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in seen.items() if name not in _COUNTED}


def _length(loader: Any) -> int | None:
    """The batches of an epoch; ``None`` for a stream, which may count only by being read."""
    try:
        return None if _is_stream(loader) else len(loader)
    except Exception as error:
        if is_the_jobs(error):
            raise
        return None


def _is_stream(loader: Any) -> bool:
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(loader.dataset, data.IterableDataset)


def _maker(loader: Any) -> Place | None:
    """The begin of the user's collate function, or else of the source of the data set's samples: not a library's."""
    kind = type(getattr(loader, "dataset", None))
    for made_by in (
        getattr(loader, "collate_fn", None),
        getattr(kind, "__getitem__", None),
        getattr(kind, "__iter__", None),
    ):
        found = getattr(made_by, "func", made_by)  # of a partial function
        for attribute in ("__wrapped__", "__func__"):
            found = getattr(found, attribute, found)
        code = getattr(found, "__code__", None) or getattr(getattr(type(found), _CALL, None), "__code__", None)
        if isinstance(code, CodeType) and not is_library(code.co_filename):
            return "", code.co_filename, code.co_firstlineno, code.co_name
    return None


def _facts(loader: Any) -> dict[str, Any]:
    """Workers, batch size, and how batches come across."""
    return {
        "workers": loader.num_workers,
        "batch_size": loader.batch_size,
        "pin_memory": bool(loader.pin_memory),
        "persistent_workers": bool(loader.persistent_workers),
        "prefetch_factor": loader.prefetch_factor,
    }
