"""Activation checkpointing, put around the blocks of a model that uses none of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from whystall.model.prediction.request import Checkpoint

_KEPT = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_dot_product_flash_attention_for_cpu"}
    | {"_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"}
)
"""What selective checkpointing keeps: what is dear to compute again."""


def apply(blocks: nn.Module, mode: Checkpoint) -> None:
    """Makes every child of ``blocks`` compute its activations again: all of them, or (selective) what is cheap."""
    settings: dict[str, Any] = {"use_reentrant": False}
    if mode == "selective":
        settings["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    for block in blocks.children():
        block.forward = _checkpointed(block.forward, settings)


def _checkpointed(forward: Callable[..., Any], settings: dict[str, Any]) -> Callable[..., Any]:
    @wraps(forward)
    def again(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, **settings, **kwargs)

    return again


def _policy(_: Any, operator: Any, *__: Any, **___: Any) -> CheckpointPolicy:
    name = operator._schema.name.partition("::")[2]  # noqa: SLF001 - the name without overload has no public accessor
    return CheckpointPolicy.MUST_SAVE if name in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE
