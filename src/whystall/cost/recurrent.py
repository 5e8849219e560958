"""LSTM, GRU and RNN layers as one call: at each time step every weight matrix meets the batch once."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from whystall.cost.result import Work
from whystall.cost.spec import Argument, TensorSpec

GATE_OPS_PER_WEIGHT_ROW = 3  # two additions and one activation a gate; an approximation for elementwise work alone


def _layer(data: TensorSpec, weights: Sequence[TensorSpec]) -> Work:
    """The work of ``weights`` over all time steps and sequences of ``data``, packed or [time, batch, width]."""
    matrices = [weight for weight in weights if len(weight.shape) == 2]
    steps = prod(data.shape[:-1])
    rows = sum(weight.shape[0] for weight in matrices) // 2
    return Work(
        2 * steps * sum(weight.numel for weight in matrices), GATE_OPS_PER_WEIGHT_ROW * steps * rows, "recurrent"
    )


def _layer_backward(data: TensorSpec, weights: Sequence[TensorSpec], wants_weights: bool = True) -> Work:
    forward = _layer(data, weights)
    flops = forward.flops * (2 if wants_weights else 1)
    weight_flops = forward.flops if wants_weights else 0
    return Work(flops, 2 * forward.elementwise, "recurrent", (data, *weights), weight_flops=weight_flops)


def mkldnn_layer(
    data: TensorSpec, w_input: TensorSpec, w_hidden: TensorSpec, b_input: TensorSpec, b_hidden: TensorSpec,
    state: TensorSpec, *rest: Argument,
) -> Work:  # fmt: skip
    """``mkldnn_rnn_layer``: one layer, one direction."""
    del rest
    work = _layer(data, (w_input, w_hidden, b_input, b_hidden))
    return work._replace(outputs=(TensorSpec((*data.shape[:-1], state.shape[-1]), data.dtype), state, state))


def mkldnn_layer_backward(data: TensorSpec, *rest: Argument) -> Work:
    """``mkldnn_rnn_layer_backward``."""
    return _layer_backward(data, [one for one in rest[:4] if isinstance(one, TensorSpec)])


def cudnn_layers(data: TensorSpec, weights: Sequence[TensorSpec], *rest: Argument) -> Work:
    """``_cudnn_rnn`` and ``miopen_rnn``: every layer and direction, projections among the matrices."""
    state = next((one for one in rest if isinstance(one, TensorSpec) and len(one.shape) == 3), data)
    directions = 2 if True in rest[-3:-1] else 1
    out = TensorSpec((*data.shape[:-1], state.shape[-1] * directions), data.dtype)
    return _layer(data, weights)._replace(outputs=(out, state, state))


def cudnn_layers_backward(data: TensorSpec, weights: Sequence[TensorSpec], *rest: Argument) -> Work:
    """``_cudnn_rnn_backward``: the last argument says whether weights get gradients."""
    mask = rest[-1]
    return _layer_backward(data, weights, bool(mask[-1]) if isinstance(mask, (list, tuple)) else True)


FORMULAS = {
    "aten::mkldnn_rnn_layer": mkldnn_layer,
    "aten::mkldnn_rnn_layer_backward": mkldnn_layer_backward,
    **dict.fromkeys(("aten::_cudnn_rnn", "aten::miopen_rnn"), cudnn_layers),
    **dict.fromkeys(("aten::_cudnn_rnn_backward", "aten::miopen_rnn_backward"), cudnn_layers_backward),
}
