"""Names for recomputation: modules by their path, a star for the number of one in a list of alike ones.

``blocks.*.mlp`` is the part of every block; ``blocks.*:cheap`` keeps its products and attention and recomputes the
rest.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final, NamedTuple

CHEAP: Final = "cheap"
PRODUCTS: Final = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_dot_product_flash_attention_for_cpu"}
    | {"_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"}
)
"""Operators whose results selective checkpointing keeps, since recomputing them is costly."""


class Again(NamedTuple):
    """A module to recompute: the whole, or only its cheap part."""

    module: str
    cheap: bool = False

    @property
    def name(self) -> str:
        """How a request names it."""
        return f"{self.module}:{CHEAP}" if self.cheap else self.module

    def holds(self, other: Again) -> bool:
        """Whether the other's module is this one, or inside it."""
        return other.module == self.module or other.module.startswith(f"{self.module}.")


def parsed(name: str) -> Again | None:
    """The request in a name; ``None`` where it is none.

    >>> parsed("blocks.*:cheap")
    Again(module='blocks.*', cheap=True)
    """
    module, colon, how = name.partition(":")
    return None if not module or (colon and how != CHEAP) else Again(module, bool(colon))


def general(path: str, lists: Container[str]) -> str:
    """A module's path with stars for its numbers in ``lists``, the paths of lists of alike modules.

    >>> general("blocks.3.experts.0.up", {"blocks", "blocks.3.experts"})
    'blocks.*.experts.*.up'
    """
    if not path:
        return path
    parts = path.split(".")
    return ".".join("*" if ".".join(parts[:place]) in lists else part for place, part in enumerate(parts))


def added(chosen: Sequence[Again], one: Again) -> tuple[Again, ...] | None:
    """The choice with one module more; ``None`` where that adds nothing, or gives no clear order.

    All of a module takes the place of its parts. A cheap one, which keeps products, cannot contain parts that keep
    none.
    """
    if any(other.holds(one) and not (other.module == one.module and other.cheap > one.cheap) for other in chosen):
        return None
    inside = [other for other in chosen if one.holds(other)]
    if one.cheap and not all(other.cheap for other in inside):
        return None
    return (*(other for other in chosen if other not in inside), one)
