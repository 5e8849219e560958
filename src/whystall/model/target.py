"""From ``package.module:factory`` or ``file.py:factory`` to a model with inputs."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from whystall.errors import InputError, UsageError

DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
    "float64": torch.float64,
}


@dataclass(frozen=True, slots=True)
class Target:
    """A model and its arguments."""

    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> tuple[int, int] | None:
        """Sequences and their length, where the first input holds integers: token ids."""
        for value in (*self.args, *self.kwargs.values()):
            if isinstance(value, torch.Tensor) and value.dim() == 2 and not value.is_floating_point():
                return int(value.shape[0]), int(value.shape[1])
        return None


def load_target(
    name: str,
    *,
    batch: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    input_shape: tuple[int, ...] | None = None,
) -> Target:
    """The model that ``name`` makes, and its inputs, on ``device`` in ``dtype`` with ``batch`` samples.

    Raises ``UsageError`` or ``InputError`` with the reason.
    """
    target = made_target(name, batch=batch, device=device, input_shape=input_shape)
    return _moved(target, device, None if dtype is None else DTYPES[dtype])


def made_target(
    name: str, *, batch: int | None = None, device: str | None = None, input_shape: tuple[int, ...] | None = None
) -> Target:
    """The model of the factory ``name`` with ``device`` as the default device, in the dtypes that it chooses.

    A factory returns a model, or a model with its inputs: ``(model, args)``, ``(model, kwargs)`` or ``(model, args,
    kwargs)``; arguments may also stand one by one. It gets ``batch=`` if it has such a parameter; else inputs are
    repeated to that size. A model without inputs gets ``input_shape``, or Transformers' ``dummy_inputs``. Raises
    ``UsageError`` or ``InputError`` with the reason.
    """
    _check(device)
    factory = named_object(name, "factory")
    with torch.device(device or "cpu"):
        made = factory(batch=batch) if batch and _takes_batch(factory) else factory() if _makes(factory) else factory
        target = _with_inputs(made, name, input_shape)
    return target if batch is None else _repeated(target, batch)


def _check(device: str | None) -> None:
    """Raises ``UsageError`` for a device that is none, or is not here."""
    try:
        wanted = torch.device(device or "cpu")
    except RuntimeError as error:
        raise UsageError(f"{device!r} is no device: {str(error).splitlines()[0]}") from None
    if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"there is no {device!r} here; run `whystall doctor --import-torch`")


def named_object(name: str, what: str) -> Any:
    """The object behind ``package.module:name`` or ``file.py:name``; ``what`` is its kind in error messages.

    Raises ``UsageError`` or ``InputError`` with the reason.
    """
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute:
        raise UsageError(f"{name!r} names no {what}: write package.module:function or file.py:function")
    found: Any = _file(Path(place)) if place.endswith(".py") else _package(place)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InputError(f"{place} has no {attribute!r}")
        found = getattr(found, part)
    return found


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"cannot read {path}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def _package(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(f"cannot import {name}: {error}") from error


def _makes(factory: Any) -> bool:
    return callable(factory) and not isinstance(factory, nn.Module)


def _takes_batch(factory: Any) -> bool:
    return _makes(factory) and "batch" in inspect.signature(factory).parameters


def _with_inputs(made: Any, name: str, input_shape: tuple[int, ...] | None) -> Target:
    model, *inputs = made if isinstance(made, tuple) and made else (made,)
    if not isinstance(model, nn.Module):
        raise UsageError(f"{name} gave {type(model).__name__}, not a torch.nn.Module (or a tuple that begins with one)")
    if inputs:
        args, kwargs = _arguments(inputs, name)
        return Target(model, args, kwargs)
    if input_shape is not None:
        return Target(model, (torch.zeros(input_shape),))
    dummy = getattr(model, "dummy_inputs", None)
    if isinstance(dummy, Mapping):
        return Target(model, (), dummy)
    raise UsageError(f"{name} gives no inputs: return (model, inputs) from it, or add --input-shape 1,3,224,224")


def _arguments(inputs: list[Any], name: str) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The arguments after a model: its positional ones, together or one by one, and then those with names."""
    *positional, last = inputs
    kwargs = last if isinstance(last, Mapping) else {}
    if not isinstance(last, Mapping):
        positional.append(last)
    if any(isinstance(one, Mapping) for one in positional):
        raise UsageError(f"{name} gave inputs behind a dictionary: return (model, args, kwargs)")
    if len(positional) == 1 and isinstance(positional[0], (list, tuple)):
        return tuple(positional[0]), kwargs
    return tuple(positional), kwargs


def _repeated(target: Target, batch: int) -> Target:
    def repeat(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.dim() or value.shape[0] == batch:
            return value
        return value[:1].expand(batch, *value.shape[1:]).clone()

    return Target(target.model, tree_map(repeat, target.args), tree_map(repeat, dict(target.kwargs)))


def _moved(target: Target, device: str | None, dtype: torch.dtype | None) -> Target:
    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(device=device, dtype=dtype if value.is_floating_point() else None)

    model = target.model if dtype is None else target.model.to(dtype)
    model = model if device is None else model.to(device)
    return Target(model, tree_map(move, target.args), tree_map(move, dict(target.kwargs)))
