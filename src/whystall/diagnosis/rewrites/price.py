"""The time of calls by their arithmetic and their bytes: the cost of one form of a computation beside another."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from whystall.cost import cost_of
from whystall.cost.result import Cost
from whystall.cost.spec import Argument, TensorSpec
from whystall.diagnosis.rank_case import RankCase

_ENTRIES: Final = tomllib.loads((files("whystall.diagnosis.rewrites") / "price.toml").read_text("utf-8"))
CALL_NS: Final = float(_ENTRIES["call_ns"]["value"])
BYTES_PER_S: Final = float(_ENTRIES["bytes_per_s"]["value"])


@dataclass(frozen=True, slots=True)
class Price:
    """The roofline of a device, and the least time of a call.

    ``smaller`` is the largest ratio of the time of a smaller form's calls to that of their arithmetic; ``cache_bytes``
    is the size of data that is written and read again without going to memory.
    """

    flops_per_s: float
    bytes_per_s: float
    call_ns: float
    smaller: float
    cache_bytes: float

    def ns(self, name: str, *arguments: Argument) -> float:
        """The time of a call. Raises ``ValueError`` where no formula fits it."""
        cost = cost_of(name, arguments)
        if cost is None:
            raise ValueError(f"{name} has no cost for {arguments!r:.100}")
        return self.of(cost)

    def of(self, cost: Cost | None) -> float:
        """The time of a cost; that of a call alone where it is not known."""
        if cost is None:
            return self.call_ns
        moved = (cost.bytes_read or 0) + (cost.bytes_written or 0)
        return self.call_ns + max(cost.all_flops / self.flops_per_s, moved / self.bytes_per_s) * 1e9

    def product(self, batch: int, rows: int, shared: int, columns: int) -> float:
        """The time of ``batch`` products of matrices of ``rows`` x ``shared`` by ``shared`` x ``columns``."""
        return self.ns("aten::bmm", TensorSpec((batch, rows, shared)), TensorSpec((batch, shared, columns)))


def price_on(rank: RankCase) -> Price:
    """Prices of calls on a rank's device; on the processor cores of a usual machine where it used none."""
    peak = rank.workings.peak
    flops = peak.peak_flops_per_s("fp32") if peak is not None else None
    moved = rank.workings.bytes_per_s
    own = {name: float(entry["value"]) for name, entry in _ENTRIES.items()}
    known = {"flops_per_s": flops, "bytes_per_s": moved}
    return Price(**own | {name: value for name, value in known.items() if value is not None})
