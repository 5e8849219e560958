"""From ``package.module:name`` or ``file.py:name`` to a loader to probe, and the loader with other settings."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from torch.utils.data import DataLoader, IterableDataset

from whystall.errors import InputError, UsageError
from whystall.model.target import named_object

USUAL_PREFETCH: Final = 2  # torch's own


@dataclass(frozen=True, slots=True)
class Source:
    """A loader, and whether it was given or made around a data set."""

    loader: DataLoader[Any]
    is_loader: bool

    @property
    def samples_per_batch(self) -> int:
        """How many samples a batch holds; 1 where the data set hands out batches of its own."""
        if self.loader.batch_size is not None:
            return int(self.loader.batch_size)
        sampler = self.loader.batch_sampler
        return 1 if sampler is None else max(len(next(iter(sampler), [])), 1)

    @property
    def batches_per_epoch(self) -> int | None:
        """The loader's length, where it has one."""
        try:
            return len(self.loader)
        except TypeError:
            return None

    @property
    def start_method(self) -> str:
        """How workers are started."""
        context = self.loader.multiprocessing_context
        if context is None:
            import multiprocessing  # noqa: PLC0415 - of no use to a loader that says it

            return multiprocessing.get_start_method()
        return str(context.get_start_method())

    def with_workers(
        self, workers: int, *, prefetch: int | None = None, fork: bool = False, endless: bool = True
    ) -> DataLoader[Any]:
        """A loader of the same batches with ``workers`` workers, whose samples never end where they have indices."""
        given = self.loader
        options: dict[str, Any] = {
            "num_workers": workers,
            "collate_fn": given.collate_fn,
            "worker_init_fn": given.worker_init_fn,
            "generator": given.generator,
        }
        if workers:
            options["prefetch_factor"] = prefetch or given.prefetch_factor or USUAL_PREFETCH
            options["multiprocessing_context"] = "fork" if fork else given.multiprocessing_context
        if isinstance(given.dataset, IterableDataset):
            return DataLoader(given.dataset, batch_size=given.batch_size, drop_last=given.drop_last, **options)
        batched = given.batch_sampler is not None
        indices = given.batch_sampler if batched else given.sampler
        chosen = _Endless(indices) if endless else indices
        if batched:
            return DataLoader(given.dataset, batch_sampler=chosen, **options)
        return DataLoader(given.dataset, batch_size=None, sampler=chosen, **options)


class _Endless:
    """The indices of one epoch after another."""

    def __init__(self, indices: Any) -> None:
        self._indices = indices

    def __iter__(self) -> Iterator[Any]:
        while True:
            empty = True
            for index in self._indices:
                empty = False
                yield index
            if empty:
                return


def load_source(name: str, *, batch: int | None = None) -> Source:
    """The loader called ``name``, or one around the data set called so, with ``batch`` samples (32).

    A function without arguments that returns either stands for it. Raises ``UsageError`` or ``InputError``.
    """
    found = named_object(name, "data set or loader")
    made = found
    if callable(found) and not _is_data(found):
        made = found()
    if isinstance(made, DataLoader):
        if batch is not None:
            raise UsageError(f"{name} is a loader, which has its own batch size: --batch is for a data set")
        return Source(made, is_loader=True)
    if not _is_data(made):
        raise UsageError(f"{name} gave {type(made).__name__}, neither a data set nor a DataLoader")
    return Source(DataLoader(made, batch_size=batch or 32), is_loader=False)


def _is_data(found: Any) -> bool:
    """Whether something is a data set: items by index with a length, or an iterable of torch's."""
    kind = type(found)
    if isinstance(found, (type, DataLoader, IterableDataset)):
        return not isinstance(found, type)
    return hasattr(kind, "__getitem__") and hasattr(kind, "__len__")


def check_gives_batches(source: Source, name: str) -> None:
    """Raises ``InputError`` for a loader without a batch."""
    if source.batches_per_epoch == 0:
        raise InputError(f"{name} has no batch to hand out")
    sys.stdout.flush()  # forked workers would print the buffer's content again
