"""Optimizers by the names that a request has for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from whystall.model.prediction.request import Kernels

_SETTINGS: Mapping[str, tuple[Callable[..., Any], Mapping[str, Any]]] = {
    "adamw": (torch.optim.AdamW, {}),
    "adam": (torch.optim.Adam, {}),
    "amsgrad": (torch.optim.AdamW, {"amsgrad": True}),
    "nadam": (torch.optim.NAdam, {}),
    "adamax": (torch.optim.Adamax, {}),
    "adagrad": (torch.optim.Adagrad, {}),
    "rmsprop": (torch.optim.RMSprop, {}),
    "rmsprop-centered-momentum": (torch.optim.RMSprop, {"centered": True, "momentum": 0.9}),
    "sgd": (torch.optim.SGD, {"lr": 1e-2}),
    "sgd-momentum": (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9}),
}
_FUSED = frozenset({"adamw", "adam", "amsgrad", "adagrad", "sgd", "sgd-momentum"})


def make_optimizer(name: str, model: nn.Module, kernels: Kernels, *, on_cpu: bool) -> list[Optimizer]:
    """The optimizer called ``name`` over the trained parameters; Muon, for matrices, brings AdamW for the rest.

    PyTorch's default is the foreach implementation on an accelerator, and tensor by tensor on a CPU.
    """
    parameters = [one for one in model.parameters() if one.requires_grad]
    if name == "muon":
        matrices = [one for one in parameters if one.dim() == 2]
        rest = [one for one in parameters if one.dim() != 2]
        made = [torch.optim.Muon(matrices)] if matrices else []
        return [*made, *(_made("adamw", rest, kernels, on_cpu=on_cpu) if rest else ())]
    return _made(name, parameters, kernels, on_cpu=on_cpu)


def _made(name: str, parameters: Iterable[Any], kernels: Kernels, *, on_cpu: bool) -> list[Optimizer]:
    kind, settings = _SETTINGS[name]
    parameters = list(parameters)
    if not parameters:
        return []
    if kernels == "fused" and name in _FUSED:
        return [kind(parameters, **settings, fused=True)]
    foreach = kernels == "foreach" or (kernels == "default" and not on_cpu)
    return [kind(parameters, **settings, foreach=foreach)]
