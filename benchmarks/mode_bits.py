"""Which operators compute other bits under a dispatch mode that does nothing: ``python -m benchmarks.mode_bits``.

While whystall looks for repeated work, such a mode is on. Every operator that torch's own tests have samples of is run
plain, plain again and under the mode; outputs and gradients are compared bit by bit. Operators that differ between two
plain runs tell nothing. Needs ``expecttest``, and takes some five minutes.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from typing import Any, Final

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

_MOST_SAMPLES: Final = 40
_GRADIENT: Final = 0.37


class Nothing(TorchDispatchMode):
    """A mode that runs each operator unchanged."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operator."""
        return function(*args, **(kwargs or {}))


def tensors(value: Any) -> list[Any]:
    """The tensors in a value."""
    if isinstance(value, torch.Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [found for one in inner for found in tensors(one)]


def copied(value: Any) -> Any:
    """A copy of a sample's arguments, with leaves of its own."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return type(value)(copied(one) for one in value) if isinstance(value, list | tuple) else value


def run(operator: Any, sample: Any, *, mode: bool) -> tuple[list[Any], set[str]]:
    """Outputs and gradients of one sample, and the names of the nodes that make the gradients."""
    torch.manual_seed(0)
    given, args, named = (
        copied(sample.input),
        copied(tuple(sample.args)),
        {k: copied(v) for k, v in sample.kwargs.items()},
    )
    leaves = [one for one in tensors([given, args, named]) if one.requires_grad]
    with Nothing() if mode else contextlib.nullcontext():
        out = tensors(operator(given, *args, **named))
        learns = [one for one in out if one.requires_grad and (one.is_floating_point() or one.is_complex())]
        ones = [torch.full_like(one, _GRADIENT) for one in learns]
        grads = torch.autograd.grad(learns, leaves, ones, allow_unused=True) if learns and leaves else []
    nodes = {one.grad_fn.name() for one in learns if one.grad_fn is not None}
    return [one.detach() for one in (*out, *grads) if one is not None], nodes


def alike(some: list[Any], others: list[Any]) -> bool:
    """Whether two runs made the same bits."""
    return len(some) == len(others) and all(
        one.shape == other.shape and torch.equal(_bytes(one), _bytes(other))
        for one, other in zip(some, others, strict=True)
    )


def _bytes(tensor: Any) -> Any:
    return tensor.contiguous().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)


def main() -> int:
    """Prints each operator that differs."""
    warnings.simplefilter("ignore")
    tested = 0
    names: set[str] = set()
    for operator in op_db:
        differs: set[str] | None = None
        with contextlib.suppress(Exception):
            samples = operator.sample_inputs("cpu", torch.float32, requires_grad=operator.supports_autograd)
            for _, sample in zip(range(_MOST_SAMPLES), samples, strict=False):
                with contextlib.suppress(Exception):  # samples that are meant to fail, and layouts without bytes
                    (plain, nodes), (again, _) = run(operator, sample, mode=False), run(operator, sample, mode=False)
                    if not alike(plain, again):
                        continue
                    watched, _ = run(operator, sample, mode=True)
                    tested, names = tested + 1, names | {operator.name}
                    if not alike(plain, watched):
                        differs = (differs or set()) | nodes
        if differs is not None:
            sys.stdout.write(f"{operator.name}: {', '.join(sorted(differs)) or 'its output'}\n")
    sys.stdout.write(f"{tested:,} samples of {len(names):,} operators were compared\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
