"""The operators of a GPT-like transformer, forward and backward, as eager PyTorch records them."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.accuracy.simulator import kernels
from benchmarks.accuracy.simulator.machine import Gpu
from benchmarks.accuracy.simulator.operators import Kernel, Operator, Tensor, backward_of, leaf, view, wrap


@dataclass(frozen=True, slots=True)
class Transformer:
    """Sizes of a model and how its layers are written."""

    layers: int = 6
    hidden: int = 2048
    heads: int = 16
    feed_forward: int = 8192
    vocabulary: int = 50304
    batch: int = 8
    sequence: int = 1024
    dtype: str = "bf16"
    matmul_path: str | None = None
    """The unit that multiplies matrices: the dtype's fastest unless told."""
    path_blocks: int | None = None
    """Only the linear layers of that many blocks are multiplied by ``matmul_path``."""
    attention: str = "flash"
    """``flash``, ``efficient`` (fp32) or ``eager``."""
    activation: str = "gelu"
    """``gelu``, ``chain`` (written out of small operators) or ``compiled`` (the chain as one kernel)."""
    layout_copies: int = 0
    """Permuted tensors made contiguous, per block."""
    casts: int = 0
    """Activations that go to fp32 and back, per block."""

    @property
    def tokens(self) -> int:
        """Tokens of a batch."""
        return self.batch * self.sequence

    def parameters(self) -> list[tuple[int, ...]]:
        """Shapes of the parameters, in the order in which the backward pass finishes them."""
        layer: list[tuple[int, ...]] = [
            (self.hidden, self.feed_forward),
            (self.feed_forward, self.hidden),
            (self.hidden,),
            (self.hidden,),
            (self.hidden, self.hidden),
            (3 * self.hidden, self.hidden),
            (self.hidden,),
            (self.hidden,),
        ]
        head: list[tuple[int, ...]] = [(self.vocabulary, self.hidden), (self.hidden,), (self.hidden,)]
        return [*head, *(layer * self.layers)]


@dataclass(frozen=True, slots=True)
class Stage:
    """A forward operator with what its backward pass does; the module that calls it, and the parameters it has."""

    module: str
    forward: tuple[Operator, ...]
    backward: tuple[tuple[str, Operator], ...]
    parameters: tuple[tuple[int, ...], ...] = ()

    @property
    def block(self) -> str:
        """The outermost module that the stage is in."""
        return self.module.partition("/")[0]


class Builder:
    """Makes the stages of one model on one accelerator."""

    def __init__(self, gpu: Gpu, model: Transformer) -> None:
        self.gpu = gpu
        self.model = model

    def _path(self, block: int | None) -> str | None:
        model = self.model
        limited = model.path_blocks is not None and (block is None or block >= model.path_blocks)
        return None if limited else model.matmul_path

    def linear(self, module: str, inputs: int, outputs: int, *, block: int | None = None) -> Stage:
        """A linear layer without bias."""
        model, gpu, path = self.model, self.gpu, self._path(block)
        rows, dtype = model.tokens, model.dtype
        data = Tensor((model.batch, model.sequence, inputs), dtype)
        flat, weight = Tensor((rows, inputs), dtype), Tensor((outputs, inputs), dtype)
        turned, gradient = Tensor((inputs, outputs), dtype), Tensor((rows, outputs), dtype)

        def product(m: int, n: int, k: int) -> Kernel:
            return kernels.matmul(gpu, m, n, k, dtype, path=path)

        multiply = leaf("aten::mm", (flat, turned), product(rows, outputs, inputs), differentiable=True)
        forward = wrap(
            "aten::linear",
            (data, weight, None),
            wrap("aten::t", (weight,), view("aten::transpose", weight)),
            wrap(
                "aten::matmul", (data, turned), view("aten::view", data), multiply, view("aten::_unsafe_view", gradient)
            ),
        )
        back = backward_of(
            "MmBackward0",
            leaf("aten::mm", (Tensor((inputs, rows), dtype), gradient), product(inputs, outputs, rows)),
            leaf("aten::mm", (gradient, weight), product(rows, inputs, outputs)),
        )
        return Stage(module, (forward,), (back, _accumulate((outputs, inputs), dtype)), ((outputs, inputs),))

    def norm(self, module: str) -> Stage:
        """A layer norm."""
        model, gpu = self.model, self.gpu
        width = model.hidden
        data = Tensor((model.batch, model.sequence, width), model.dtype)
        one = Tensor((width,), model.dtype)
        inner = leaf(
            "aten::native_layer_norm",
            (data, None, one, one, None),
            kernels.layer_norm(gpu, model.tokens, width, model.dtype),
            differentiable=True,
        )
        forward = wrap("aten::layer_norm", (data, None, one, one, None, None), inner)
        first, second = kernels.layer_norm_backward(gpu, model.tokens, width, model.dtype)
        inner_back = Operator(
            "aten::native_layer_norm_backward", (data, data, None, one, one), (first, second), 5_000, 1_500
        )
        back = backward_of("NativeLayerNormBackward0", inner_back)
        grow = _accumulate((width,), model.dtype)
        return Stage(module, (forward,), (back, grow, grow), ((width,), (width,)))

    def pointwise(self, module: str, name: str, functor: str, width: int, *, tensors: int = 2) -> Stage:
        """An elementwise operator; backward takes one tensor more."""
        model, gpu = self.model, self.gpu
        data = Tensor((model.batch, model.sequence, width), model.dtype)
        operator = leaf(
            f"aten::{name}",
            (data,) * (tensors - 1),
            kernels.elementwise(gpu, functor, data.elements, model.dtype, tensors=tensors),
            differentiable=True,
        )
        title = name.replace("_", " ").title().replace(" ", "")
        if name == "add":
            return Stage(module, (operator,), (backward_of("AddBackward0"),))
        kernel = kernels.elementwise(gpu, functor + "Backward", data.elements, model.dtype, tensors=tensors + 1)
        back = backward_of(f"{title}Backward0", leaf(f"aten::{name}_backward", (data, data), kernel))
        return Stage(module, (operator,), (back,))

    def copies(self, module: str, count: int) -> list[Stage]:
        """Permuted tensors made contiguous."""
        model, gpu = self.model, self.gpu
        data = Tensor((model.batch, model.heads, model.sequence, model.hidden // model.heads), model.dtype)
        kernel = kernels.layout_copy(gpu, data.elements, model.dtype)
        copy = leaf("aten::copy_", (data, data, None), kernel)
        forward = wrap("aten::contiguous", (data, None), wrap("aten::clone", (data, None), copy, differentiable=True))
        back = backward_of(
            "CloneBackward0", wrap("aten::contiguous", (data, None), wrap("aten::clone", (data, None), copy))
        )
        return [Stage(module, (view("aten::permute", data), forward), (back,)) for _ in range(count)]

    def round_trips(self, module: str, count: int) -> list[Stage]:
        """Activations that go to fp32, and back at once."""
        low, high = self.model.dtype, "fp32"
        return [self._cast(module, low, high), self._cast(module, high, low)] * count

    def _cast(self, module: str, source: str, target: str) -> Stage:
        model = self.model
        shape = (model.batch, model.sequence, model.hidden)

        def cast(before: str, after: str, *, forward: bool = False) -> Operator:
            data, made = Tensor(shape, before), Tensor(shape, after)
            kernel = kernels.cast(self.gpu, data.elements, before, after)
            copy = leaf("aten::copy_", (made, data, None), kernel)
            return wrap(
                "aten::to",
                (data, None, None, None),
                wrap("aten::_to_copy", (data, None, None, None), copy, differentiable=forward),
            )

        return Stage(
            module, (cast(source, target, forward=True),), (backward_of("ToCopyBackward0", cast(target, source)),)
        )

    def attention(self, module: str) -> list[Stage]:
        """Attention as one fused kernel, or as the products and the softmax it is made of."""
        model, gpu = self.model, self.gpu
        width = model.hidden // model.heads
        data = Tensor((model.batch, model.heads, model.sequence, width), model.dtype)
        if model.attention == "flash":
            sizes = (gpu, model.batch, model.heads, model.sequence, width, model.dtype)
            six = (data, data, data, None, None, None)
            inner = wrap(
                "aten::_scaled_dot_product_flash_attention",
                six,
                leaf("aten::_flash_attention_forward", six, kernels.flash_forward(*sizes)),
                differentiable=True,
                concrete=("", "", "", "0.", "True", "False"),
            )
            forward = wrap("aten::scaled_dot_product_attention", six, inner, concrete=("", "", "", "", "0.", "True"))
            behind = Operator(
                "aten::_flash_attention_backward", (data,) * 5, kernels.flash_backward(*sizes), 6_000, 2_000
            )
            name = "aten::_scaled_dot_product_flash_attention_backward"
            back = backward_of("ScaledDotProductFlashAttentionBackward0", wrap(name, (data,) * 5, behind))
            return [Stage(module, (view("aten::transpose", data), forward), (back,))]
        if model.attention == "efficient":
            return [self._efficient_attention(module, data, width)]
        return self._eager_attention(module, width)

    def _efficient_attention(self, module: str, data: Tensor, width: int) -> Stage:
        model, gpu = self.model, self.gpu
        sizes = (gpu, model.batch, model.heads, model.sequence, width)
        six = (data, data, data, None, None, None)
        deepest = leaf("aten::_efficient_attention_forward", six, kernels.efficient_attention(*sizes, backward=False))
        name = "aten::_scaled_dot_product_efficient_attention"
        inner = wrap(name, six, deepest, differentiable=True, concrete=("", "", "", "0.", "True", "False"))
        forward = wrap("aten::scaled_dot_product_attention", six, inner, concrete=("", "", "", "", "0.", "True"))
        kernel = kernels.efficient_attention(*sizes, backward=True)
        behind = leaf("aten::_efficient_attention_backward", (data,) * 5, kernel)
        back = backward_of("ScaledDotProductEfficientAttentionBackward0", wrap(f"{name}_backward", (data,) * 5, behind))
        return Stage(module, (view("aten::transpose", data), forward), (back,))

    def _eager_attention(self, module: str, width: int) -> list[Stage]:
        model, gpu = self.model, self.gpu
        groups, length, dtype = model.batch * model.heads, model.sequence, model.dtype
        scores = Tensor((model.batch, model.heads, length, length), dtype)
        mask = Tensor((1, 1, length, length), "bool")
        flat = Tensor((groups, length, width), dtype)
        turned, square = Tensor((groups, width, length), dtype), Tensor((groups, length, length), dtype)

        def product(left: Tensor, right: Tensor, *, forward: bool = False) -> Operator:
            m, k, n = left.shape[1], left.shape[2], right.shape[2]
            kernel = kernels.matmul(gpu, m, n, k, dtype, batch=groups, path=model.matmul_path)
            return leaf("aten::bmm", (left, right), kernel, differentiable=forward)

        def times(left: Tensor, right: Tensor) -> Operator:
            return wrap("aten::matmul", (left, right), product(left, right, forward=True))

        def pointwise(name: str, functor: str, *, tensors: int = 2) -> Operator:
            kernel = kernels.elementwise(gpu, functor, scores.elements, dtype, tensors=tensors)
            return leaf(name, (scores,) * (tensors - 1), kernel, differentiable=True)

        soft = leaf(
            "aten::_softmax", (scores, None, None), kernels.softmax(gpu, scores.elements, dtype), differentiable=True
        )
        soft_back = leaf(
            "aten::_softmax_backward_data",
            (scores, scores),
            kernels.softmax(gpu, scores.elements, dtype, backward=True),
        )
        masked = kernels.elementwise(gpu, "masked_fill_kernel", scores.elements, dtype, tensors=2)
        scaled = kernels.elementwise(gpu, "MulFunctor", scores.elements, dtype, tensors=2)
        return [
            Stage(
                module,
                (times(flat, turned),),
                (backward_of("BmmBackward0", product(turned, square), product(square, flat)),),
            ),
            Stage(
                module,
                (pointwise("aten::mul", "MulFunctor"),),
                (backward_of("MulBackward0", leaf("aten::mul", (scores,), scaled)),),
            ),
            Stage(
                module,
                (leaf("aten::masked_fill", (scores, mask, None), masked, differentiable=True),),
                (backward_of("MaskedFillBackward0", leaf("aten::masked_fill", (scores, mask, None), masked)),),
            ),
            Stage(
                module,
                (wrap("aten::softmax", (scores, None, None), soft),),
                (backward_of("SoftmaxBackward0", soft_back),),
            ),
            Stage(
                module,
                (times(square, flat),),
                (backward_of("BmmBackward0", product(square, flat), product(flat, turned)),),
            ),
        ]

    def activation(self, module: str, index: int) -> list[Stage]:
        """GELU: as PyTorch has it, written out with ``tanh``, or that compiled into one kernel."""
        model, gpu = self.model, self.gpu
        width = model.feed_forward
        if model.activation == "gelu":
            return [self.pointwise(f"{module}/GELU_{index}", "gelu", "GeluCUDAKernel", width)]
        if model.activation == "chain":
            parts = [
                ("pow", "pow_tensor_scalar_kernel", 2),
                ("mul", "MulFunctor", 2),
                ("add", "CUDAFunctor_add", 3),
                ("mul", "MulFunctor", 2),
                ("tanh", "tanh_kernel_cuda", 2),
                ("add", "CUDAFunctorOnSelf_add", 2),
                ("mul", "MulFunctor", 2),
                ("mul", "MulFunctor", 3),
            ]
            return [self.pointwise(module, name, functor, width, tensors=tensors) for name, functor, tensors in parts]
        data = Tensor((model.batch, model.sequence, width), model.dtype)
        one = kernels.fused(gpu, "add_mul_pow_tanh", data.elements, model.dtype, tensors=2)
        two = kernels.fused(gpu, "add_mul_pow_tanh_backward", data.elements, model.dtype, tensors=3, number=1)
        region = f"Torch-Compiled Region: {index}/0"
        forward = wrap(region, (), Operator("CompiledFunction", (data,), (one,), 9_000, 2_000, differentiable=True))
        back = backward_of(
            "CompiledFunctionBackward", Operator("CompiledFunctionBackward", (data,), (two,), 9_000, 2_000)
        )
        return [Stage(module, (forward,), (back,))]

    def block(self, index: int) -> list[Stage]:
        """One transformer block."""
        model = self.model
        name = f"Block_{index}"
        add = self.pointwise(name, "add", "CUDAFunctor_add", model.hidden, tensors=3)
        attention = f"{name}/CausalSelfAttention_{index}"
        return [
            self.norm(f"{name}/LayerNorm_{2 * index}"),
            self.linear(f"{attention}/Linear_{4 * index}", model.hidden, 3 * model.hidden, block=index),
            *self.copies(attention, model.layout_copies),
            *self.round_trips(attention, model.casts),
            *self.attention(attention),
            self.linear(f"{attention}/Linear_{4 * index + 1}", model.hidden, model.hidden, block=index),
            add,
            self.norm(f"{name}/LayerNorm_{2 * index + 1}"),
            self.linear(f"{name}/MLP_{index}/Linear_{4 * index + 2}", model.hidden, model.feed_forward, block=index),
            *self.activation(f"{name}/MLP_{index}", index),
            self.linear(f"{name}/MLP_{index}/Linear_{4 * index + 3}", model.feed_forward, model.hidden, block=index),
            add,
        ]

    def embedding(self) -> Stage:
        """Tokens to vectors; the weight is that of the head."""
        model, gpu = self.model, self.gpu
        moved = model.tokens * model.hidden
        table = Tensor((model.vocabulary, model.hidden), model.dtype)
        chosen = Tensor((model.batch, model.sequence), "int64")
        kernel = kernels.elementwise(gpu, "indexSelectLargeIndex", moved, model.dtype, tensors=2)
        inner = leaf("aten::index_select", (table, None, chosen), kernel)
        forward = wrap("aten::embedding", (table, chosen, None, None, None), inner, differentiable=True)
        behind = kernels.elementwise(gpu, "embedding_backward_feature_kernel", moved, model.dtype, tensors=3)
        dense = leaf(
            "aten::embedding_dense_backward", (Tensor((model.tokens, model.hidden), model.dtype), chosen), behind
        )
        return Stage("Embedding_0", (forward,), (backward_of("EmbeddingBackward0", dense),))

    def loss(self) -> Stage:
        """Cross entropy."""
        model, gpu = self.model, self.gpu
        scores = Tensor((model.tokens, model.vocabulary), model.dtype)
        target = Tensor((model.tokens,), "int64")
        soft = leaf(
            "aten::_log_softmax",
            (scores, None, None),
            kernels.softmax(gpu, scores.elements, model.dtype, log=True),
            differentiable=True,
        )
        pick = leaf(
            "aten::nll_loss_forward",
            (scores, target),
            kernels.reduction(gpu, "NLLLoss", model.tokens, model.dtype),
            differentiable=True,
        )
        forward = wrap(
            "aten::cross_entropy_loss",
            (scores, target),
            wrap("aten::log_softmax", (scores, None, None), soft),
            wrap("aten::nll_loss_nd", (scores, target), pick),
        )
        zero = leaf(
            "aten::nll_loss_backward",
            (scores, target),
            kernels.elementwise(gpu, "nll_loss_backward", scores.elements, model.dtype, tensors=1),
        )
        back = kernels.softmax(gpu, scores.elements, model.dtype, backward=True, log=True)
        return Stage(
            "CrossEntropyLoss_0",
            (forward,),
            (
                backward_of("NllLossBackward0", zero),
                backward_of("LogSoftmaxBackward0", leaf("aten::_log_softmax_backward_data", (scores, scores), back)),
            ),
        )

    def stages(self) -> list[Stage]:
        """The whole model with its loss, in forward order."""
        blocks = [stage for index in range(self.model.layers) for stage in self.block(index)]
        return [
            self.embedding(),
            *blocks,
            self.norm(f"LayerNorm_{2 * self.model.layers}"),
            self.linear(f"Linear_{4 * self.model.layers}", self.model.hidden, self.model.vocabulary),
            self.loss(),
        ]


def _accumulate(shape: tuple[int, ...], dtype: str) -> tuple[str, Operator]:
    """A gradient is taken over: with ``set_to_none`` that moves no data."""
    return backward_of("torch::autograd::AccumulateGrad", view("aten::detach", Tensor(shape, dtype)))
