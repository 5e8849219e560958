"""The operators of a residual convolutional network in fp16, with tensors in either memory format."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.accuracy.simulator import kernels
from benchmarks.accuracy.simulator.machine import Gpu
from benchmarks.accuracy.simulator.operators import Kernel, Operator, Tensor, backward_of, leaf, view, wrap
from benchmarks.accuracy.simulator.transformer import Stage


@dataclass(frozen=True, slots=True)
class ConvNet:
    """Four groups of 3x3 convolutions; each group halves the image and doubles the channels."""

    layers: int = 12
    channels: int = 64
    image: int = 56
    batch: int = 128
    channels_last: bool = True
    dtype: str = "fp16"

    def sizes(self, layer: int) -> tuple[int, int]:
        """Channels and side of the image of a layer."""
        group = 4 * layer // self.layers
        return self.channels << group, self.image >> group

    def parameters(self) -> list[tuple[int, ...]]:
        """Shapes of the parameters, in the order in which the backward pass finishes them."""
        shapes: list[tuple[int, ...]] = [(1000, self.sizes(self.layers - 1)[0])]
        for layer in reversed(range(self.layers)):
            channels, _ = self.sizes(layer)
            shapes += [(channels,), (channels,), (channels, channels, 3, 3)]
        return shapes

    def stages(self, gpu: Gpu) -> list[Stage]:
        """The whole network with its loss, in forward order."""
        found = []
        for layer in range(self.layers):
            found += [self._convolution(gpu, layer), self._norm(gpu, layer), self._relu(gpu, layer)]
        return [*found, self._loss(gpu)]

    def _data(self, layer: int) -> Tensor:
        channels, side = self.sizes(layer)
        return Tensor((self.batch, channels, side, side), self.dtype)

    def _turns(self, gpu: Gpu, tensor: Tensor, *, back: bool) -> tuple[Kernel, ...]:
        if self.channels_last:
            return ()
        kind = "nhwcToNchwKernel" if back else "nchwToNhwcKernel"
        parameters = "nhwc2nchw_params_t" if back else "nchw2nhwc_params_t"
        name = f"void cudnn::ops::{kind}<__half, __half, float, false, true, (cudnnKernelDataType_t)0>(cudnn::ops::{parameters}<float>, __half const*, __half*)"
        return (Kernel(name, gpu.memory_ns(2.3 * tensor.bytes), (tensor.elements // 1024, 1, 1)),)

    def _convolution(self, gpu: Gpu, layer: int) -> Stage:
        channels, side = self.sizes(layer)
        data, weight = self._data(layer), Tensor((channels, channels, 3, 3), self.dtype)
        rows = self.batch * side * side

        def product(kind: str, m: int, n: int, k: int) -> Kernel:
            plain = kernels.matmul(gpu, m, n, k, self.dtype)
            name = f"sm90_xmma_{kind}_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1_g1_execute_segment_k_off_kernel__5x_cudnn"
            return Kernel(name, round(plain.work_ns * 1.15), (132, 1, 1), (384, 1, 1), 168, 200_000)

        into, out = self._turns(gpu, data, back=False), self._turns(gpu, data, back=True)
        nine = (data, weight, None, None, None, None, None, None, None)
        body = (*into, product("fprop", rows, channels, 9 * channels), *out)
        deepest = Operator("aten::cudnn_convolution", nine[:2], body, 9_000, 2_000)
        inner = wrap("aten::convolution", nine, wrap("aten::_convolution", nine, deepest), differentiable=True)
        behind = (
            *into,
            product("dgrad", rows, channels, 9 * channels),
            product("wgrad", 9 * channels, channels, rows),
            *out,
        )
        back = Operator("aten::convolution_backward", (data, data, weight, *nine[2:]), behind, 14_000, 2_500)
        name = f"Layer_{layer}/Conv2d_{layer}"
        return Stage(
            name,
            (wrap("aten::conv2d", nine, inner),),
            (
                backward_of("ConvolutionBackward0", back),
                backward_of("torch::autograd::AccumulateGrad", view("aten::detach", weight)),
            ),
            (weight.shape,),
        )

    def _norm(self, gpu: Gpu, layer: int) -> Stage:
        data, one = self._data(layer), Tensor((self.sizes(layer)[0],), "fp32")
        form = "NHWC" if self.channels_last else "NCHW"
        forward = Kernel(
            f"void cudnn::bn_fw_tr_1C11_kernel_{form}<__half2, float, 512, true, 1, true>(cudnnTensorStruct, __half2 const*)",
            gpu.memory_ns(3 * data.bytes),
            (one.elements, 1, 1),
            (512, 1, 1),
        )
        backward = Kernel(
            f"void cudnn::bn_bw_1C11_kernel_new<__half2, float, float2, 512, true, 1, {form}>(float, float, cudnnTensorStruct)",
            gpu.memory_ns(5 * data.bytes),
            (one.elements, 1, 1),
            (512, 1, 1),
        )
        five = (data, one, one, one, one)
        inner = leaf("aten::cudnn_batch_norm", five, forward, differentiable=True)
        outer = wrap("aten::batch_norm", five, wrap("aten::_batch_norm_impl_index", five, inner))
        back = leaf("aten::cudnn_batch_norm_backward", (data, data, one), backward)
        return Stage(
            f"Layer_{layer}/BatchNorm2d_{layer}",
            (outer,),
            (backward_of("CudnnBatchNormBackward0", back),),
            (one.shape, one.shape),
        )

    def _relu(self, gpu: Gpu, layer: int) -> Stage:
        data = self._data(layer)
        forward = leaf(
            "aten::relu_",
            (data,),
            kernels.elementwise(gpu, "clamp_min_scalar_kernel", data.elements, self.dtype, tensors=2),
            differentiable=True,
        )
        back = leaf(
            "aten::threshold_backward",
            (data, data, None),
            kernels.elementwise(gpu, "threshold_kernel", data.elements, self.dtype, tensors=3),
        )
        return Stage(f"Layer_{layer}/ReLU_{layer}", (forward,), (backward_of("ReluBackward0", back),))

    def _loss(self, gpu: Gpu) -> Stage:
        channels, side = self.sizes(self.layers - 1)
        data, flat = self._data(self.layers - 1), Tensor((self.batch, channels), self.dtype)
        weight = Tensor((channels, 1000), self.dtype)
        product = kernels.matmul(gpu, self.batch, 1000, channels, self.dtype)
        mean = leaf("aten::mean", (data, None, None), kernels.reduction(gpu, "MeanOps", data.elements, self.dtype))
        linear = leaf("aten::addmm", (Tensor((1000,), self.dtype), flat, weight), product, differentiable=True)
        spread = leaf(
            "aten::div", (data, None), kernels.elementwise(gpu, "DivFunctor", data.elements, self.dtype, tensors=1)
        )
        back = backward_of(
            "AddmmBackward0",
            leaf("aten::mm", (flat, weight), product),
            leaf("aten::mm", (weight, flat), product),
            spread,
        )
        return Stage(f"Linear_{side}", (mean, linear), (back,), ((1000, channels),))
