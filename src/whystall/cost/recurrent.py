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
    """``_cudnn_rnn_backward``: the last argument decides whether weights get gradients."""
    mask = rest[-1]
    return _layer_backward(data, weights, bool(mask[-1]) if isinstance(mask, (list, tuple)) else True)


LSTM_OPS = (
    13  # of a unit: two gate inputs added four times, four activations, two products and a sum, tanh and a product
)
GRU_OPS = 10  # two gates of an addition and a sigmoid, a product, sum and tanh, and three to mix old and new


def fused_lstm_cell(
    gates: TensorSpec, _hidden: TensorSpec, state: TensorSpec, bias: TensorSpec | None = None, *_: Argument
) -> Work:
    """``_thnn_fused_lstm_cell``: an LSTM's work around its products; each of two biases is 4 more a unit."""
    ops = (LSTM_OPS + 8 * (bias is not None)) * state.numel
    return Work(0, ops, "recurrent", (state, state, gates))


def fused_lstm_cell_backward(
    _gradient: Argument, _state_gradient: Argument, state: TensorSpec, _new: TensorSpec, gates: TensorSpec, *_: Argument
) -> Work:
    """``_thnn_fused_lstm_cell_backward_impl``: by convention twice the forward pass."""
    return Work(0, 2 * LSTM_OPS * state.numel, "recurrent", (gates, state))


def fused_gru_cell(
    gates: TensorSpec, _hidden: TensorSpec, state: TensorSpec, bias: TensorSpec | None = None, *_: Argument
) -> Work:
    """``_thnn_fused_gru_cell``: a GRU's cell, with 3 more operations for each of two biases."""
    workspace = TensorSpec((gates.shape[0], 5 * state.shape[-1]), gates.dtype)
    return Work(0, (GRU_OPS + 6 * (bias is not None)) * state.numel, "recurrent", (state, workspace))


def fused_gru_cell_backward(gradient: TensorSpec, *_: Argument) -> Work:
    """``_thnn_fused_gru_cell_backward``: by convention twice the forward pass."""
    gates = TensorSpec((*gradient.shape[:-1], 3 * gradient.shape[-1]), gradient.dtype)
    return Work(0, 2 * GRU_OPS * gradient.numel, "recurrent", (gates, gates, gradient))


FORMULAS = {
    "aten::_thnn_fused_lstm_cell": fused_lstm_cell,
    "aten::_thnn_fused_lstm_cell_backward_impl": fused_lstm_cell_backward,
    "aten::_thnn_fused_gru_cell": fused_gru_cell,
    "aten::_thnn_fused_gru_cell_backward": fused_gru_cell_backward,
    "aten::mkldnn_rnn_layer": mkldnn_layer,
    "aten::mkldnn_rnn_layer_backward": mkldnn_layer_backward,
    **dict.fromkeys(("aten::_cudnn_rnn", "aten::miopen_rnn"), cudnn_layers),
    **dict.fromkeys(("aten::_cudnn_rnn_backward", "aten::miopen_rnn_backward"), cudnn_layers_backward),
}
