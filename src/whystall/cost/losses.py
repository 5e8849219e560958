"""Losses with formulas of their own: those whose work is not one number for each element of their first tensor."""

from __future__ import annotations

from collections.abc import Sequence

from whystall.cost.result import Work
from whystall.cost.spec import Argument, TensorSpec

Lengths = Sequence[int] | TensorSpec | None

ALPHA_OPS = 11  # three differences and exponentials, two sums, a logarithm, the maximum and the label's own added again
COLLECT_OPS = 8  # alpha + beta, and the logarithm of a sum of two exponentials
LOGIT_OPS = 6  # of a gradient: two exponentials, three additions, a product


def cross_entropy_with_logits(
    data: TensorSpec,
    _target: TensorSpec,
    weight: TensorSpec | None = None,
    positive_weight: TensorSpec | None = None,
    reduction: Argument = 1,
    **_: Argument,
) -> Work:
    """``binary_cross_entropy_with_logits``: (1 - y) x - log sigmoid x and its sum, 6 N.

    A weight N, that of positives 4 N.
    """
    each = 6 + (weight is not None) + 4 * (positive_weight is not None)
    return Work(0, each * data.numel, "reduction", (data if reduction == 0 else TensorSpec((), data.dtype),))


def multi_margin_backward(_gradient: TensorSpec, data: TensorSpec, *_: Argument, **__: Argument) -> Work:
    """``multi_margin_loss_backward``: two additions for the margin, one for the gradient of the label."""
    return Work(0, 3 * data.numel, "reduction", (data,))


def _cells(probabilities: TensorSpec, targets: TensorSpec, data_lengths: Lengths, target_lengths: Lengths) -> int:
    """Places of the lattice of time steps and of labels with blanks around each.

    Where lengths are not known, the longest.
    """
    if isinstance(data_lengths, (list, tuple)) and isinstance(target_lengths, (list, tuple)) and target_lengths:
        pairs = zip(data_lengths, target_lengths, strict=True)
        return sum(int(steps) * (2 * int(labels) + 1) for steps, labels in pairs)
    steps, batch = probabilities.shape[:2]
    return steps * (2 * targets.numel + batch)


def ctc(
    probabilities: TensorSpec, targets: TensorSpec, data_lengths: Lengths, target_lengths: Lengths, *_: Argument
) -> Work:
    """``_ctc_loss``: 11 operations for each place of the lattice."""
    cells = _cells(probabilities, targets, data_lengths, target_lengths)
    outputs = (TensorSpec(probabilities.shape[1:2], probabilities.dtype), TensorSpec((cells,), probabilities.dtype))
    return Work(0, ALPHA_OPS * cells, "reduction", outputs)


def ctc_backward(
    _gradient: TensorSpec,
    probabilities: TensorSpec,
    targets: TensorSpec,
    data_lengths: Lengths,
    target_lengths: Lengths,
    *_: Argument,
) -> Work:
    """``_ctc_loss_backward``: the lattice from its end, both directions' sum for a label, 6 for each probability."""
    cells = _cells(probabilities, targets, data_lengths, target_lengths)
    ops = (ALPHA_OPS + COLLECT_OPS) * cells + LOGIT_OPS * probabilities.numel
    return Work(0, ops, "reduction", (probabilities,))


def cudnn_ctc(
    probabilities: TensorSpec, targets: TensorSpec, data_lengths: Lengths, target_lengths: Lengths, *_: Argument
) -> Work:
    """``_cudnn_ctc_loss``: the loss and its gradient in one."""
    forward = ctc(probabilities, targets, data_lengths, target_lengths)
    gradient = ctc_backward(probabilities, probabilities, targets, data_lengths, target_lengths)
    outputs = (*(forward.outputs or ())[:1], probabilities)
    return Work(0, forward.elementwise + gradient.elementwise, "reduction", outputs)


def chunked_cross_entropy(
    data: TensorSpec,
    weight: TensorSpec,
    _target: TensorSpec,
    bias: TensorSpec | None,
    _class_weight: TensorSpec | None,
    *rest: Argument,
) -> Work | None:
    """``F.linear_cross_entropy`` in chunks: the logits, and the gradients that it computes with them.

    Each logit takes a subtraction of the maximum, an exponential, a sum, and one product where there are gradients.
    """
    if not all(isinstance(one, bool) for one in rest[-3:]):
        return None  # not recorded: the products inside are counted instead
    wants_data, wants_weight, wants_bias = (bool(one) for one in rest[-3:])
    work = chunked_cross_entropy_each(data, weight, _target, bias)
    logits = data.shape[0] * weight.shape[0]
    outputs = [spec for spec, wanted in ((data, wants_data), (weight, wants_weight)) if wanted]
    return Work(
        work.flops * (1 + wants_data + wants_weight),
        work.elementwise + logits * (wants_data or wants_weight or wants_bias) + logits * wants_bias,
        "matrix",
        (TensorSpec((), data.dtype), *outputs),
        weight_flops=work.flops * wants_weight,
    )


def chunked_cross_entropy_each(
    data: TensorSpec, weight: TensorSpec, _target: TensorSpec, bias: TensorSpec | None, *_: Argument
) -> Work:
    """``F.linear_cross_entropy`` in chunks, a loss for each row and no gradients."""
    logits = data.shape[0] * weight.shape[0]
    return Work(
        2 * logits * data.shape[1],
        (3 + (bias is not None)) * logits,
        "matrix",
        (TensorSpec(data.shape[:1], data.dtype),),
    )


FORMULAS = {
    "aten::binary_cross_entropy_with_logits": cross_entropy_with_logits,
    "aten::multi_margin_loss_backward": multi_margin_backward,
    "aten::_ctc_loss": ctc,
    "aten::_ctc_loss_backward": ctc_backward,
    "aten::_cudnn_ctc_loss": cudnn_ctc,
    "torch_nn::_linear_cross_entropy_batch_chunked": chunked_cross_entropy,
    "torch_nn::_linear_cross_entropy_batch_chunked_no_reduction": chunked_cross_entropy_each,
}
