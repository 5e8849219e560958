"""Kernels by roofline, with the names that current PyTorch, cuBLAS, cuDNN, FlashAttention and NCCL give them."""

from __future__ import annotations

from benchmarks.accuracy.simulator.machine import BYTES_PER_ELEMENT, SCALAR_TYPE, Gpu
from benchmarks.accuracy.simulator.operators import Kernel

CPP_TYPE = {"bf16": "c10::BFloat16", "fp16": "c10::Half", "fp32": "float", "int64": "long", "bool": "bool"}
_MATMUL_TILES = ((192, 192, "1x2_h_bz_coopA"), (128, 256, "2x1_v_bz_coopB"), (256, 128, "1x2_h_bz_coopA"))


def matmul(gpu: Gpu, m: int, n: int, k: int, dtype: str, *, batch: int = 1, path: str | None = None) -> Kernel:
    """A matrix multiplication; ``path`` says which units compute it, the fastest of the dtype unless told."""
    path = path or ("simt" if dtype == "fp32" else dtype)
    size = BYTES_PER_ELEMENT[dtype]
    bytes_moved = batch * size * (m * k + k * n + m * n)
    alignment = min(_alignment(k), _alignment(n)) if size == 2 and path != "simt" else 8
    efficiency = {8: 1.0, 4: 0.78, 2: 0.66, 1: 0.42}[alignment]
    duration_ns = gpu.matmul_ns(2.0 * batch * m * n * k, bytes_moved, path, efficiency)
    tile_m, tile_n, flavour = _MATMUL_TILES[(m + n + k) % 3]
    name = _matmul_name(gpu, dtype, path, alignment, tile_m, tile_n, flavour)
    blocks = -(-m // tile_m) * -(-n // tile_n) * batch
    grid = (min(blocks, gpu.multiprocessors), 1, 1) if "nvjet" in name else (blocks, 1, 1)
    return Kernel(name, duration_ns, grid, (384, 1, 1), 168, 213_000, call="cudaLaunchKernelExC")


def _alignment(size: int) -> int:
    return next(each for each in (8, 4, 2, 1) if size % each == 0)


def _matmul_name(gpu: Gpu, dtype: str, path: str, alignment: int, tile_m: int, tile_n: int, flavour: str) -> str:
    if path == "simt":
        kind = "cutlass_80_simt_sgemm_256x128_8x4_tn_align1"
        return f"ampere_{dtype}_sgemm_{dtype}_128x64_tn" if dtype != "fp32" else _cutlass(kind)
    if path == "tf32":
        kind = "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize2x1x1_execute_segment_k_off_kernel__5x_cublas"
        return kind if gpu.architecture[0] >= 9 else _cutlass("cutlass_80_tensorop_s1688gemm_256x128_16x3_tn_align4")
    if alignment < 8:
        short = {"bf16": "bf16_s16816gemm_bf16", "fp16": "f16_s16816gemm_f16"}[dtype]
        wmma = "wmma_" if alignment == 1 else ""
        return _cutlass(f"cutlass_80_{wmma}tensorop_{short}_128x128_32x4_tn_align{alignment}")
    if gpu.architecture[0] >= 9:
        return f"nvjet_{'tst' if dtype == 'bf16' else 'hsh'}_{tile_m}x{tile_n}_64x4_{flavour}_TNT"
    return f"ampere_{dtype}_s16816gemm_{dtype}_{tile_m}x128_ldg8_f2f_stages_32x3_tn"


def _cutlass(kind: str) -> str:
    return f"void cutlass::Kernel2<{kind}>({kind}::Params)"


def elementwise(gpu: Gpu, functor: str, elements: int, dtype: str, *, tensors: int = 3) -> Kernel:
    """A kernel that reads and writes ``tensors`` tensors in all."""
    name = (
        f"void at::native::vectorized_elementwise_kernel<4, at::native::{functor}<{CPP_TYPE[dtype]}>, "
        f"std::array<char*, {tensors}ul> >(int, at::native::{functor}<{CPP_TYPE[dtype]}>, std::array<char*, {tensors}ul>)"
    )
    return Kernel(
        name,
        gpu.memory_ns(tensors * elements * BYTES_PER_ELEMENT[dtype]),
        (max(1, elements // 512), 1, 1),
        registers=26,
    )


def cast(gpu: Gpu, elements: int, source: str, target: str) -> Kernel:
    """A kernel that copies a tensor into another dtype."""
    functor = "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const"
    name = (
        f"void at::native::unrolled_elementwise_kernel<{functor}::{{lambda({CPP_TYPE[source]})#1}}, std::array<char*, 2ul>, 4, "
        "TrivialOffsetCalculator<1, unsigned int>, TrivialOffsetCalculator<1, unsigned int>, "
        "at::native::memory::LoadWithCast<1>, at::native::memory::StoreWithCast<1> >"
    )
    moved = elements * (BYTES_PER_ELEMENT[source] + BYTES_PER_ELEMENT[target])
    return Kernel(name, gpu.memory_ns(moved), (max(1, elements // 512), 1, 1), registers=30)


def reduction(gpu: Gpu, functor: str, elements: int, dtype: str) -> Kernel:
    """A kernel that reads a tensor and writes little."""
    name = (
        f"void at::native::reduce_kernel<512, 1, at::native::ReduceOp<{CPP_TYPE[dtype]}, at::native::{functor}"
        f"<{CPP_TYPE[dtype]}, float, float, {CPP_TYPE[dtype]}>, unsigned int, {CPP_TYPE[dtype]}, 4, 4> >"
    )
    return Kernel(
        name, gpu.memory_ns(elements * BYTES_PER_ELEMENT[dtype]), (max(1, elements // 8_192), 1, 1), (32, 16, 1)
    )


def layout_copy(gpu: Gpu, elements: int, dtype: str) -> Kernel:
    """A strided copy, far from the bandwidth of a straight one."""
    functor = "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const"
    name = f"void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<{functor}::{{lambda({CPP_TYPE[dtype]})#1}}> >"
    moved = 2 * elements * BYTES_PER_ELEMENT[dtype]
    return Kernel(name, gpu.memory_ns(moved * 1.9), (max(1, elements // 512), 1, 1))


def layer_norm(gpu: Gpu, rows: int, columns: int, dtype: str) -> Kernel:
    """Forward layer norm."""
    name = f"void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<{CPP_TYPE[dtype]}, float, false>(int, float, {CPP_TYPE[dtype]} const*, {CPP_TYPE[dtype]} const*, {CPP_TYPE[dtype]} const*, float*, float*, {CPP_TYPE[dtype]}*)"
    return Kernel(name, gpu.memory_ns(2 * rows * columns * BYTES_PER_ELEMENT[dtype]), (rows, 1, 1), (32, 4, 1))


def layer_norm_backward(gpu: Gpu, rows: int, columns: int, dtype: str) -> tuple[Kernel, Kernel]:
    """Gradients of the input, and of weight and bias."""
    size = rows * columns * BYTES_PER_ELEMENT[dtype]
    types = f"{CPP_TYPE[dtype]}, float"
    return (
        Kernel(
            f"void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<{types}, false>({CPP_TYPE[dtype]} const*)",
            gpu.memory_ns(3 * size),
            (rows, 1, 1),
        ),
        Kernel(
            f"void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<{types}, 32u, 1u, 32u, true, false, false>(long, long)",
            gpu.memory_ns(2 * size),
            (columns // 32 or 1, 64, 1),
            (32, 1, 1),
        ),
    )


def flash_forward(gpu: Gpu, batch: int, heads: int, length: int, width: int, dtype: str) -> Kernel:
    """Causal FlashAttention-2, forward."""
    flops = 4.0 * batch * heads * length * length * width / 2
    name = f"void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<{width}, 128, 64, 4, false, false, cutlass::{'bfloat16_t' if dtype == 'bf16' else 'half_t'}, Flash_kernel_traits<{width}, 128, 64, 4, cutlass::bfloat16_t> >, false, true, false, false, false, true, false, false>(pytorch_flash::Flash_fwd_params)"
    return Kernel(
        name,
        gpu.matmul_ns(flops, 0, dtype, 0.62),
        (-(-length // 128), batch, heads),
        registers=255,
        shared_bytes=81_920,
    )


def flash_backward(gpu: Gpu, batch: int, heads: int, length: int, width: int, dtype: str) -> tuple[Kernel, ...]:
    """Causal FlashAttention-2, backward."""
    flops = 10.0 * batch * heads * length * length * width / 2
    traits = f"Flash_bwd_kernel_traits<{width}, 128, 128, 8, 4, 4, 4, false, false, cutlass::bfloat16_t>"
    size = batch * heads * length * width * BYTES_PER_ELEMENT[dtype]
    return (
        Kernel(
            f"void pytorch_flash::flash_bwd_dot_do_o_kernel<true, {traits}>(pytorch_flash::Flash_bwd_params)",
            gpu.memory_ns(3 * size),
            (-(-length // 128), batch, heads),
        ),
        Kernel(
            f"void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<{traits}, false, true, false, false, true, true, false>(pytorch_flash::Flash_bwd_params)",
            gpu.matmul_ns(flops, 0, dtype, 0.55),
            (-(-length // 128), batch, heads),
            registers=255,
        ),
        Kernel(
            f"void pytorch_flash::flash_bwd_convert_dq_kernel<{traits}>(pytorch_flash::Flash_bwd_params, int)",
            gpu.memory_ns(3 * size),
            (-(-length // 128), batch, heads),
        ),
    )


def softmax(gpu: Gpu, elements: int, dtype: str, *, backward: bool = False, log: bool = False) -> Kernel:
    """Softmax or log-softmax over the last dimension."""
    kind = ("LogSoftMax" if log else "SoftMax") + ("Backward" if backward else "Forward")
    function = "cunn_SoftMaxBackward" if backward else "cunn_SoftMaxForward"
    name = f"void at::native::(anonymous namespace)::{function}<4, {CPP_TYPE[dtype]}, float, {CPP_TYPE[dtype]}, at::native::(anonymous namespace)::{kind}Epilogue>({CPP_TYPE[dtype]}*, {CPP_TYPE[dtype]} const*, int)"
    return Kernel(
        name,
        gpu.memory_ns((3 if backward else 2) * elements * BYTES_PER_ELEMENT[dtype]),
        (max(1, elements // 4_096), 1, 1),
        (1024, 1, 1),
    )


def multi_tensor(gpu: Gpu, functor: str, bytes_moved: int, *, lists: int) -> Kernel:
    """A kernel over lists of tensors: foreach and fused optimizers."""
    name = f"void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<{lists}>, at::native::(anonymous namespace)::{functor}>(at::native::(anonymous namespace)::TensorListMetadata<{lists}>, at::native::(anonymous namespace)::{functor})"
    return Kernel(name, gpu.memory_ns(bytes_moved), (320, 1, 1), (512, 1, 1))


def grouped_matmul(gpu: Gpu, m: int, n: int, k: int, dtype: str) -> Kernel:
    """The products of several experts in one kernel."""
    plain = matmul(gpu, m, n, k, dtype)
    kind = "cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<cute::tuple<int, int, int> >, cutlass::gemm::collective::CollectiveMma<cutlass::gemm::MainloopSm90ArrayTmaGmmaWarpSpecialized<4> > >"
    return Kernel(
        f"void cutlass::device_kernel<{kind}>({kind}::Params)", plain.work_ns, (132, 1, 1), (384, 1, 1), 168, 213_000
    )


def efficient_attention(gpu: Gpu, batch: int, heads: int, length: int, width: int, *, backward: bool) -> Kernel:
    """Causal memory-efficient attention in fp32.

    Three TensorFloat-32 products for each, whatever the matmul flags say.
    """
    flops = 3 * (10.0 if backward else 4.0) * batch * heads * length * length * width / 2
    kind = "AttentionBackwardKernel" if backward else "AttentionKernel"
    letter, tile = ("B", "64x64_k64") if backward else ("F", "64x64_rf")
    name = f"fmha_cutlass{letter}_f32_aligned_{tile}_sm80(PyTorchMemEffAttention::{kind}<float, cutlass::arch::Sm80, true, 64, 64, 64, true, true>::Params)"
    return Kernel(name, gpu.matmul_ns(flops, 0, "tf32", 0.6), (-(-length // 64), heads, batch), (32, 4, 1), 168)


def fused(gpu: Gpu, kinds: str, elements: int, dtype: str, *, tensors: int, number: int = 0) -> Kernel:
    """A pointwise kernel that the compiler made of several."""
    moved = tensors * elements * BYTES_PER_ELEMENT[dtype]
    return Kernel(
        f"triton_poi_fused_{kinds}_{number}",
        gpu.memory_ns(moved),
        (max(1, elements // 1024), 1, 1),
        call="cuLaunchKernel",
    )


NCCL_NAME = {
    "allreduce": "ncclDevKernel_AllReduce_Sum_{}_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_allgather_base": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_reduce_scatter_base": "ncclDevKernel_ReduceScatter_Sum_{}_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all_to_allv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "send": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "recv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}
NCCL_TYPE = {"bf16": "bf16", "fp16": "f16", "fp32": "f32"}
COMMUNICATION_DTYPE = {"bf16": "BFloat16", "fp16": "Half", "fp32": "Float"}


def communication(collective: str, dtype: str) -> Kernel:
    """A collective's kernel; how long it lasts is for the ranks to find out."""
    name = NCCL_NAME[collective].format(NCCL_TYPE[dtype])
    return Kernel(name, 0, (16, 1, 1), (544, 1, 1), 96, 82_240, call="cudaLaunchKernelExC")


def host_type(dtype: str) -> str:
    """How the profiler names a dtype among an operator's inputs."""
    return SCALAR_TYPE[dtype]
