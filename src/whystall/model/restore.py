"""Restores a model: gradients, buffers, random numbers, and an optimizer step's changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map

Undo = Callable[[], None]


@contextmanager
def unchanged(model: nn.Module, optimizer: Optimizer | None = None, inputs: Any = ()) -> Iterator[None]:
    """Undoes the changes of a profiled run, also after an exception.

    Gradients of the model and of ``inputs`` start empty. Buffers are copied; parameters and the optimizer's state only
    where an optimizer steps.
    """
    parameters = list(model.parameters())
    with ExitStack() as undo:  # a step of it that fails keeps no other from being taken
        undo.callback(_random_numbers())
        if optimizer is not None:
            undo.callback(_contents(parameters))
            undo.callback(_optimizer_state(optimizer))
        undo.callback(_contents(model.buffers()))
        for module in model.modules():
            undo.callback(_attributes(module))
        for tensor in dict.fromkeys((*parameters, *leaves(inputs))):
            undo.callback(setattr, tensor, "grad", tensor.grad)
            tensor.grad = None
        yield


def fresh(value: Any) -> Any:
    """``value`` as a run may use it up.

    Containers of tensors are copied (a cache that grows), the tensors given are not.
    """
    leaves = tree_leaves(value)
    kept = {id(one): one for one in leaves if isinstance(one, (torch.Tensor, nn.Module))}

    def copied(one: Any) -> Any:
        if id(one) in kept:
            return one
        try:
            return deepcopy(one, dict(kept))
        except Exception:  # noqa: BLE001 - what cannot be copied (a generator, an open file) is used as it is
            return one

    return tree_map(copied, value)


def leaves(inputs: Any) -> list[torch.Tensor]:
    """The tensors among inputs that get a gradient."""
    return [one for one in tree_leaves(inputs) if isinstance(one, torch.Tensor) and one.is_leaf and one.requires_grad]


def _attributes(module: nn.Module) -> Undo:
    """Puts back which mode a module is in and which tensors are its buffers."""
    training, buffers = module.training, dict(module._buffers)  # noqa: SLF001 - a buffer may be another tensor afterwards

    def undo() -> None:
        module.training = training
        module._buffers.clear()  # noqa: SLF001 - likewise
        module._buffers.update(buffers)  # noqa: SLF001 - likewise

    return undo


def _contents(tensors: Iterable[Any]) -> Undo:
    """Restores tensors' contents by their memory, so that expanded tensors and inference tensors are restored, too."""
    memories: dict[int, tuple[Any, Any]] = {}
    others: list[tuple[torch.Tensor, torch.Tensor]] = []
    for tensor in tensors:
        if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ or tensor.layout is not torch.strided:
            others.append(
                (tensor, tensor.detach().clone())
            )  # wrappers (DTensor, fake tensors) have no memory of their own
        elif tensor.device.type != "meta":
            memory = tensor.untyped_storage()
            if memory.data_ptr() not in memories:
                memories[memory.data_ptr()] = (memory, memory.clone())

    def undo() -> None:
        for memory, before in memories.values():
            memory.copy_(before)
        with torch.no_grad():
            for tensor, copy in others:
                tensor.copy_(copy)

    return undo


def _optimizer_state(optimizer: Optimizer) -> Undo:
    """Puts back an optimizer's state and settings, its tensors being the same ones as before."""
    tensors = [one for one in tree_leaves(list(optimizer.state.values())) if isinstance(one, torch.Tensor)]
    tensors += [one for group in optimizer.param_groups for one in group.values() if isinstance(one, torch.Tensor)]
    same = {id(one): one for group in optimizer.param_groups for one in group["params"]}
    same |= {id(one): one for one in tensors}
    contents = _contents(tensors)
    states = [(key, held, deepcopy(held, dict(same))) for key, held in optimizer.state.items()]
    groups = [(group, deepcopy(group, dict(same))) for group in optimizer.param_groups]

    def undo() -> None:
        contents()
        optimizer.state.clear()
        for key, held, before in states:
            held.clear()
            held.update(before)
            optimizer.state[key] = held
        for group, before in groups:
            group.clear()
            group.update(before)

    return undo


def _random_numbers() -> Undo:
    random = torch.get_rng_state()
    of_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def undo() -> None:
        torch.set_rng_state(random)
        if of_devices:
            torch.cuda.set_rng_state_all(of_devices)

    return undo
