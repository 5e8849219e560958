"""Activation checkpointing, put around the blocks of a model that uses none of its own, or around modules by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from whystall.errors import UsageError
from whystall.model.prediction.recompute_names import PRODUCTS, parsed
from whystall.model.prediction.request import Checkpoint

_MOST_NAMED = 12


def apply(blocks: nn.Module, mode: Checkpoint) -> None:
    """Makes every child of ``blocks`` recompute its activations: all, or (selective) the cheap ones."""
    for block in blocks.children():
        _wrap(block, cheap=mode == "selective")


def apply_to(model: nn.Module, names: Mapping[int, str], chosen: Iterable[str]) -> None:
    """Makes the modules that are ``chosen`` compute their activations again; ``names`` are those of modules by id.

    Raises ``UsageError`` for a name that is none.
    """
    known: dict[str, list[nn.Module]] = {}
    for module in model.modules():
        known.setdefault(names[id(module)], []).append(module)
    for name in chosen:
        again = parsed(name)
        if again is None or again.module not in known:
            there = ", ".join(sorted(filter(None, known), key=lambda one: one.count("."))[:_MOST_NAMED])
            raise UsageError(f"no module to compute again is called {name!r}: there are {there}")
        for module in known[again.module]:
            _wrap(module, cheap=again.cheap)


def _wrap(module: nn.Module, *, cheap: bool) -> None:
    settings: dict[str, Any] = {"use_reentrant": False}
    if cheap:
        settings["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    module.forward = _checkpointed(module.forward, settings)


def _checkpointed(forward: Callable[..., Any], settings: dict[str, Any]) -> Callable[..., Any]:
    @wraps(forward)
    def again(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, **settings, **kwargs)

    return again


def _policy(_: Any, operator: Any, *__: Any, **___: Any) -> CheckpointPolicy:
    name = operator._schema.name.partition("::")[2]  # noqa: SLF001 - the name without overload has no public accessor
    return CheckpointPolicy.MUST_SAVE if name in PRODUCTS else CheckpointPolicy.PREFER_RECOMPUTE


def is_over() -> bool:
    """Whether a checkpoint that is being computed again has all that it needs: a real run stops there.

    On an accelerator that is not there the exception for it is switched off (``simulate``): the rest runs for nothing.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)  # noqa: SLF001 - says who packs tensors now
    if hooks is None or "_recomputation_hook" not in getattr(hooks[0], "__qualname__", ""):
        return False
    pack = getattr(hooks[0], "_torchdynamo_orig_callable", hooks[0])
    if not isinstance(pack, FunctionType):
        return False
    cells = zip(pack.__code__.co_freevars, pack.__closure__ or (), strict=True)
    held = {name: cell.cell_contents for name, cell in cells}
    frame = held["target_frame_ref"]() if "target_frame_ref" in held else None
    return frame is not None and frame.recomp_counter[held["gid"]] >= len(frame.weak_holders) > 0
