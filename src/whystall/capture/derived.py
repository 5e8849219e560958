"""Derives results of operators from known results: from ones that were read, and from plain numbers.

The inputs of a long operator are read. Later short operators need no reading: an operator has the same result if its
inputs derive from the same values by the same operators. Results are known by their storages, within a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

_DEEPEST: Final = 3
_PLAIN: Final = (bool, int, float, str, type(None))


@dataclass(frozen=True, slots=True)
class Known:
    """The identity of a result. ``follows``: from a result that was read, and not from numbers alone."""

    name: int
    follows: bool


class Derived:
    """Follows the results of a step's operators."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._known: dict[int, Known] = {}
        self._held: dict[int, Any] = {}
        """Weak references, which keep torch from giving a storage's place to another."""

    def forget(self) -> None:
        """Ends a step: its remaining tensors may be written to."""
        self._known.clear()
        self._held.clear()

    def note(
        self, function: Any, given: tuple[Any, ...], named: Mapping[str, Any], output: object, read: object = None
    ) -> Known | None:
        """The identity of an operator's result; ``None`` where an input is unknown.

        ``read`` is the content of all its inputs, if that was read.
        """
        everything = (*given, *named.values())
        found = None if self._torch.Tag.nondeterministic_seeded in function.tags else self._of(function, everything)
        if read is not None:
            found = Known(hash((function, read)), follows=True)
        taken, made = self._storages(everything), self._storages((output,))
        writes = function._schema.is_mutable  # noqa: SLF001 - as torch's own modes read it
        for number, (address, storage) in enumerate({**(taken if writes else {}), **made}.items()):
            if found is None or (address not in made and writes):
                self._known.pop(address, None)
            elif writes or address not in taken:  # else it is a view of a known one
                self._known[address] = Known(hash((found.name, number)), found.follows)
                self._held[address] = _weak(storage)
        return found

    def _of(self, function: Any, everything: tuple[Any, ...]) -> Known | None:
        parts: list[object] = [function]
        follows = False
        for value in self._values(everything):
            if not isinstance(value, self._torch.Tensor):
                if not isinstance(value, _PLAIN) and type(value).__module__ != "torch":
                    return None
                parts.append(repr(value))
                continue
            storage = _storage_of(self._torch, value)
            known = None if storage is None else self._known.get(storage._cdata)  # noqa: SLF001 - as torch.multiprocessing knows storages
            if known is None:
                return None
            follows |= known.follows
            parts += [known.name, tuple(value.shape), value.stride(), value.storage_offset()]
        return Known(hash(tuple(parts)), follows)

    def _values(self, value: object, deep: int = _DEEPEST) -> Iterator[object]:
        """All that is in some arguments, in order, with the sizes of lists among them."""
        if not isinstance(value, list | tuple) or not deep:
            yield value
            return
        yield len(value)
        for one in value:
            yield from self._values(one, deep - 1)

    def _storages(self, values: tuple[object, ...]) -> dict[int, Any]:
        found = {}
        for value in self._values(values):
            storage = _storage_of(self._torch, value) if isinstance(value, self._torch.Tensor) else None
            if storage is not None:
                found[storage._cdata] = storage  # noqa: SLF001 - as torch.multiprocessing knows storages
        return found


def _storage_of(torch: Any, tensor: Any) -> Any:
    """The storage of a plain tensor; other tensors lie in no single storage."""
    plain = tensor.layout is torch.strided and not tensor.is_nested
    return tensor.untyped_storage() if plain else None


def _weak(storage: Any) -> Any:
    from torch.multiprocessing.reductions import StorageWeakRef  # noqa: PLC0415 - the user has imported torch

    return StorageWeakRef(storage)
