"""The tables of embeddings that a job makes, and the user's lines that make them."""

from __future__ import annotations

import sys
import weakref
from typing import Any

from whystall.capture.stacks import shown_file, text_of
from whystall.capture.tally import Place, place_of
from whystall.run_folder.observations import MOST_TABLES, MadeAt, MadeTable


class TablesMade:
    """Receives each module as it is made; a table's size is read later, since it is not known by then."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._made: list[tuple[weakref.ref[Any], Place]] = []

    def add(self, module: object) -> None:
        """Remembers a table of embeddings, as long as there are not many.

        One that has a table by now is a copy, comes from a file or receives another table: it was made elsewhere.
        """
        known = len(self._made) < MOST_TABLES and isinstance(module, self._torch.nn.Embedding)
        if known and "weight" not in vars(module).get("_parameters", ("weight",)):
            frame = sys._getframe(1)  # noqa: SLF001 - the documented way to the calling frame
            self._made.append((weakref.ref(module), place_of("", frame)))

    def told(self) -> list[MadeTable]:
        """Those that are alive, each size and line once."""
        found: dict[tuple[int, int, Place], MadeTable] = {}
        for reference, place in self._made:
            module = reference()
            rows, size = (getattr(module, name, None) for name in ("num_embeddings", "embedding_dim"))
            if type(rows) is int and type(size) is int:
                _, file, line, function = place
                at = MadeAt(shown_file(file), line, function, text_of(file, line))
                found.setdefault((rows, size, place), MadeTable(rows, size, at))
        return list(found.values())
