"""Which scores of attention count: its masks hide the others, in its arguments or in the scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from whystall.run_folder.observations import MOST_SPARSE, AttendedScores

# Within inference a mode hears operators before they are taken apart.
_SOFTMAX: Final = frozenset({"aten::_softmax", "aten::_safe_softmax", "aten::softmax"})
_ATTENTION: Final = ("aten::_scaled_dot_product_", "aten::scaled_dot_product_attention")
_MASKS: Final = ("attn_mask", "attn_bias")
_FEWEST_KEYS: Final = 64
_TILES: Final = 32
"""Number of groups of queries, and of keys, to count."""
_FEWEST_DIMENSIONS: Final = 3  # a softmax with fewer chooses words or experts
_MOST_COUNTED: Final = 1 << 25
_OFTEN: Final = 1 << 18
"""Smaller masks are counted in more calls: a cache's keys grow with each."""
_COUNTS: Final = (4, 64)
_MOST_SIZES: Final = 16
# Values added to scores so that their softmax is 0: minus infinity, a dtype's least, or a number that seemed small
# enough.
_HIDDEN: Final = -9_000.0

Size = tuple[int, int]


class _Counted(NamedTuple):
    kept: float
    tiles: float
    causal: bool
    sliding: bool


class Attended:
    """Counts, of each size a few times."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._seen: dict[Size, list[_Counted]] = {}
        self._all_seen: set[Size] = set()
        """Sizes with a call that hid nothing."""
        self.asks = False
        """Whether attention was called: torch tags it as random, and the time of random operators selects nothing."""

    def told(self) -> list[AttendedScores]:
        """The sizes of scores that were partly hidden each time, and the mean shares that count."""
        found = []
        for size, counted in self._seen.items():
            kept, tiles = (sum(shares) / len(counted) for shares in list(zip(*counted, strict=True))[:2])
            forms = (all(shapes) for shapes in list(zip(*counted, strict=True))[2:])
            told = AttendedScores(*size, kept, tiles, *forms)
            if size not in self._all_seen and min(kept, tiles) < 1:
                found.append(told)
        return sorted(found, key=lambda one: one.kept * one.tiles)[:MOST_SPARSE]

    def note(self, function: Any, given: tuple[Any, ...], named: Mapping[str, Any], *, counts: bool) -> None:
        """Records an operator's call; ``counts``: whether to count its hidden scores."""
        name = function._schema.name  # noqa: SLF001 - as torch's own modes read it
        self.asks |= name.startswith(_ATTENTION)
        if not counts:
            return
        if name in _SOFTMAX:
            scores, dimension = given[:2]
            if scores.dim() >= _FEWEST_DIMENSIONS and dimension in (-1, scores.dim() - 1):
                self._count(scores, scores.shape[-2:])
        elif name.startswith(_ATTENTION) and not name.endswith("_backward") and len(given) > 1:
            mask = _mask(function, given, named)
            size = (given[0].shape[-2], given[1].shape[-2])
            if mask is None:
                self._all_seen.add(size)
            else:
                self._count(mask, size)

    def _count(self, mask: Any, size: Size) -> None:
        queries, keys = (int(side) for side in size)
        known = self._seen.get((queries, keys))
        wanted = _COUNTS[mask.numel() <= _OFTEN]
        room = len(known) < wanted if known is not None else len(self._seen) < _MOST_SIZES
        if not room or keys < _FEWEST_KEYS or mask.numel() > _MOST_COUNTED or mask.layout is not self._torch.strided:
            return
        seen = mask if mask.dtype is self._torch.bool else mask > _HIDDEN
        if bool(seen.all()):
            self._all_seen.add((queries, keys))
            return
        counted = self._counted(seen, queries, keys)
        if counted is not None:
            self._seen.setdefault((queries, keys), []).append(counted)

    def _counted(self, seen: Any, queries: int, keys: int) -> _Counted | None:
        """The share that a mask of ``[..., queries or 1, keys]`` keeps; ``None`` where it hides all."""
        torch = self._torch
        if seen.dim() < 2 or seen.shape[-1] != keys or seen.shape[-2] not in (1, queries):
            return None
        seen = seen.reshape(-1, seen.shape[-2], keys)
        by_key = seen.any(dim=1)
        kept = float(by_key.any(dim=0).double().mean())
        if kept == 0:
            return None
        if seen.shape[1] == 1:
            return _Counted(kept, 1.0, causal=False, sliding=False)
        causal = queries == keys and bool((seen == torch.ones_like(seen[0]).tril()).all())
        sliding = queries == keys and bool((seen[:, 1:, 1:] == seen[:, :-1, :-1]).all())
        tile, tile_keys = (max(-(-side // _TILES), 1) for side in (queries, keys))
        padded = torch.nn.functional.pad(seen, (0, -keys % tile_keys, 0, -queries % tile))
        rows, columns = padded.shape[1] // tile, padded.shape[2] // tile_keys
        tiles = padded.reshape(-1, rows, tile, columns, tile_keys).any(4).any(2)
        # Padding of a batch is hidden from all: with equal numbers of queries and keys it is left out of both.
        used = tiles.any(dim=1)
        asked = used if queries == keys else tiles.any(dim=2)
        whole = (asked.sum(1) * used.sum(1)).double()
        count = (tiles & used[:, None, :] & asked[:, :, None]).sum((1, 2)).double()
        return _Counted(kept, float(count.sum() / whole.sum()), causal, sliding) if float(whole.sum()) else None


def _mask(function: Any, given: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """The mask that attention is called with, if there is one."""
    for place, argument in enumerate(function._schema.arguments):  # noqa: SLF001
        if argument.name in _MASKS:
            return named.get(argument.name, given[place] if place < len(given) else None)
    return None
