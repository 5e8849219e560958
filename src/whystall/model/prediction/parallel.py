"""Several ranks: what each of them holds under data parallelism and sharding."""

from __future__ import annotations

from typing import Any

from torch import nn

from whystall.model.prediction.blocks import Blocks
from whystall.model.prediction.request import Request


def mesh_of(request: Request) -> Any:
    return None


def largest_unit_bytes(model: nn.Module, blocks: Blocks | None) -> int:
    """The bytes of the parameters that are gathered together: of one block, or of all that is in none."""
    rest = sum(one.numel() * one.element_size() for one in model.parameters())
    if blocks is None:
        return rest
    each = [
        sum(one.numel() * one.element_size() for one in block.parameters()) for block in blocks.modules.children()
    ]
    return max(rest - sum(each), *each)


def distribute(request: Request, model: nn.Module, blocks: Blocks | None, mesh: Any) -> None:
    """Makes ``model`` what one of several ranks holds."""


def buffers(request: Request, model: nn.Module) -> list[int]:
    """The sizes of buffers for communication that a rank holds from the beginning on."""
    return []
