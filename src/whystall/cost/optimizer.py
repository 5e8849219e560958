"""Fused optimizer steps: operations and bytes for each element of the parameters.

The operations are those of the single-tensor loops of ``torch.optim``: AdamW decays (1), moves both moments (3 + 4),
takes root, bias correction and epsilon (3) and steps (3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from whystall.cost.result import Work
from whystall.cost.spec import Argument, TensorSpec, tensors

OPS_PER_ELEMENT = {
    "aten::_fused_adamw_": 14,
    "aten::_fused_adam_": 15,
    "aten::_fused_sgd_": 6,
    "aten::_fused_adagrad_": 7,
}


def _step(ops: int) -> Callable[..., Work]:
    def formula(
        parameters: Sequence[TensorSpec], gradients: Sequence[TensorSpec], *states: Argument, **_: Argument
    ) -> Work:
        numel = sum(spec.numel for spec in parameters)
        kept = [spec for state in states if isinstance(state, (list, tuple)) for spec in tensors(state) if spec.shape]
        return Work(
            0,
            ops * numel,
            "optimizer",
            (*parameters, *kept),
            read=sum(spec.nbytes for spec in (*parameters, *gradients, *kept)),
        )

    return formula


FORMULAS = {name: _step(ops) for name, ops in OPS_PER_ELEMENT.items()}
