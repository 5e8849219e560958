"""Leaving a model as it was found: gradients, buffers, random numbers, and what an optimizer step changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy

import torch
from torch import nn
from torch.optim import Optimizer


@contextmanager
def unchanged(model: nn.Module, optimizer: Optimizer | None = None) -> Iterator[None]:
    """Puts back what a profiled run changes, also after an exception.

    Gradients start empty. Buffers are copied; parameters and the optimizer's state only where an optimizer steps.
    """
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    weights = [] if optimizer is None else [(one, one.detach().clone()) for one, _ in gradients]
    state = None if optimizer is None else deepcopy(optimizer.state_dict())
    random = torch.get_rng_state()
    device_random = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for tensor, before in (*buffers, *weights):
                tensor.copy_(before)
        if optimizer is not None and state is not None:
            optimizer.load_state_dict(state)
        torch.set_rng_state(random)
        if device_random:
            torch.cuda.set_rng_state_all(device_random)
