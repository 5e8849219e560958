"""Writes the names that a redacted report keeps: `src/whystall/report/public_names.txt`, each with where it is public.

Run where torch is installed, with binutils' `nm`: `python docs/make_public_names.py`.
"""

from __future__ import annotations

import inspect
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import torch
from torch.utils.hipify import cuda_to_hip_mappings

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "src/whystall/report/public_names.txt"
KERNELS = ROOT / "tests/analysis/kernel_names.tsv"
NAMESPACES = re.compile(
    r"\b(at|c10|cub|thrust|cutlass|cute|cudnn|cublas|ck|ck_tile|rocprim|hipcub|at_cuda_detail|cuda_cub|flash|"
    r"pytorch_flash)::"
)
TORCH = Path(torch.__file__).parent
VERSION = torch.__version__.partition("+")[0]
LETTERS = re.compile(r"[A-Za-z]+")
WORD = re.compile(r"[A-Za-z_]\w*")
# Functions of drivers, runtimes and profilers that hipify does not know: they appear as events alone.
ONLY_EVENTS = """
cudaDeviceSynchronize cudaLaunchKernelExC cudaLaunchCooperativeKernel cudaMemcpyAsync cudaMemsetAsync cudaGraphLaunch
cudaStreamIsCapturing cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cudaStreamGetCaptureInfo
cudaKernelSetAttributeForDevice
cuLaunchKernel cuLaunchKernelEx cuMemcpyDtoHAsync cuMemcpyHtoDAsync cuMemsetD8Async cuMemsetD32Async
cuStreamWriteValue32
hipLaunchKernel hipExtLaunchKernel hipExtModuleLaunchKernel hipModuleLaunchKernel hipLaunchCooperativeKernel
hipMemcpyWithStream
hipMemcpyAsync hipMemsetAsync hipGraphLaunch hipDeviceSynchronize hipStreamSynchronize hipEventSynchronize
hipEventRecord
Memcpy Memset HtoD DtoH DtoD HtoH PtoP Pageable Pinned Device Host Unknown Context Sync Stream Event Wait
"""
# Parts that generated names of kernels are put together from (cuBLAS, cuDNN, CUTLASS, NCCL, RCCL, Tensile), beyond
# those of the names in the table of kernels.
PARTS = """
sm xmma gemm gemv conv fprop dgrad wgrad indexed implicit direct grouped depthwise tilesize stage stages warpsize
warpgroupsize
warpspecialized tensor kernel cta execute segment k off on splitk splitK sliced ldg align relu gelu bias beta exp simt
tensorop wmma cublas
cudnn trt infer train medium small large interior xregs nhwc nchw nhwckrsc ndhwc nn nt tn tt cf cc coop coopA coopB bz
TNN TNT NNN NNT NTN
NTT TTN TTT f bf fp tf e m i u s h d c z hsh hss tss tst sss qqtst qqhsh ootst sgemm dgemm hgemm cgemm zgemm hcudnn
scudnn icudnn
winograd nonfused mods strided stridedB batched
transpose dword pooling coalescedC analytic optimized
AllReduce AllGather ReduceScatter Broadcast Reduce SendRecv AlltoAll AlltoAllv Gather Scatter Sum Prod Min Max MinMax
PreMulSum SumPostDiv
Avg RING TREE COLLNET DIRECT CHAIN NVLS PAT LL LLMC SIMPLE half float double int uint Generic Debug RSxLD AGxST
RSxLDMC AGxSTMC
ncclDevKernel ncclKernel ncclSymDevKernel ncclSymkDevKernel ncclDevKernelDebug mscclKernel rcclGenericKernel
triton poi per red for tem spl unk fused de
"""
# Operators and autograd functions of libraries beside torch: torchvision, FBGEMM, vLLM, SGLang, FlashAttention,
# xFormers, Transformer Engine, Apex, bitsandbytes, AITER, Mamba.
OF_LIBRARIES = """
torchvision nms roi_align roi_pool ps_roi_align ps_roi_pool deform_conv2d
fbgemm fbgemm_gpu permute_2D_sparse_data permute_1D_sparse_data permute_sparse_features asynchronous_complete_cumsum
asynchronous_inclusive_cumsum asynchronous_exclusive_cumsum block_bucketize_sparse_features bounds_check_indices
split_embedding_codegen_lookup_rowwise_adagrad_function split_embedding_codegen_lookup_sgd_function
split_embedding_codegen_lookup_adam_function SplitLookupFunction_rowwise_adagrad_Op SplitLookupFunction_sgd_Op
SplitLookupFunction_adam_Op SplitLookupFunction_Dense_Op All2All_Pooled_Req All2All_Pooled_Wait jagged_to_padded_dense
dense_to_jagged jagged_2d_to_dense offsets_range segment_sum_csr
_C_cache_ops _vllm_fa2_C _vllm_fa3_C vllm unified_attention unified_attention_with_output moe_forward moe_forward_shared
inplace_fused_experts outplace_fused_experts reshape_and_cache reshape_and_cache_flash rotary_embedding silu_and_mul
gelu_and_mul gelu_tanh_and_mul fused_add_rms_norm rms_norm static_scaled_fp8_quant dynamic_scaled_fp8_quant
dynamic_per_token_scaled_fp8_quant cutlass_scaled_mm paged_attention_v1 paged_attention_v2 moe_align_block_size
topk_softmax sgl_kernel sgl_per_token_group_quant_fp8 varlen_fwd varlen_bwd fwd_kvcache
flash_attn _flash_attn_forward _flash_attn_backward _flash_attn_varlen_forward _flash_attn_varlen_backward FlashAttnFunc
FlashAttnVarlenFunc FlashAttnQKVPackedFunc FlashAttnKVPackedFunc RotaryEmb ApplyRotaryEmb CrossEntropyLoss
DropoutAddLayerNormFn LayerNormFn LayerNormLinearFn FusedDenseGeluDense SwiGLUFunction MambaInnerFn SelectiveScanFn
MambaSplitConv1dScanCombinedFn MambaChunkScanCombinedFn CausalConv1dFn
xformers_flash xformers efficient_attention_forward_cutlass efficient_attention_backward_cutlass fMHA
_LayerNormLinear _LayerNormMLP _Linear _GroupedLinear FusedAttnFunc FusedLayerNormAffineFunction
FusedRMSNormAffineFunction LinearWithGradAccumulationAndAsyncCommunication LinearWithFrozenWeight
_VocabParallelCrossEntropy
_CopyToModelParallelRegion _ReduceFromModelParallelRegion _ScatterToModelParallelRegion _GatherFromModelParallelRegion
bitsandbytes MatMul4Bit MatMul8bitLt quantize_4bit dequantize_4bit aiter gemm_a16w16 gemm_a8w8 pa_fwd_asm
LigerCrossEntropyFunction LigerRMSNormFunction LigerSiLUMulFunction LigerRopeFunction
LigerFusedLinearCrossEntropyFunction CheckpointFunction UnpackDequantFunction CppNode CompiledFunction
copy_bucket_to_grad GraphRoot CopySlices AccumulateGrad PermutePooledEmbsFunction permute_pooled_embs_gpu
permute_pooled_embs_auto_grad recat_embedding_grad_output_mixed_D_batch ViewNestedFromBuffer
gemmSN_TN_kernel cublasGemmSmallNParams cudnnStatus_t cublasStatus_t event_wait event_record sage_fwd sage_quant_kernel
MIOpenBatchNormFwdTrainSpatial MIOpenBatchNormBwdSpatial MIOpenBatchNormFwdInferSpatialEst nms_kernel_impl vision
genericReformat copyVectorizedKernel permutationKernelPLC3 conv_kernel_common_params convolve_common_engine_float_NHWC
wgrad_alg0_engine_NHWC dgrad_engine Im2d2Col_v2 reduction_prod_kernel GeneralUnarySmall GeneralBinary
hipGetDevicePropertiesR0600 hipGetFuncBySymbol hipCtxGetCurrent hipPointerGetAttributes
"""
FAMILIES = """
sm cutlass ampere volta turing hopper blackwell maxwell pascal kepler
nvjet Cijk Dijk cudnn cask trt xmma igemm naive batched
ncclDevKernel ncclKernel ncclSymDevKernel ncclSymkDevKernel ncclDevKernelDebug mscclKernel fmha miopenSp
"""


def operators() -> set[str]:
    """The parts of all operators' names; of those that work in place, too."""
    names = {part for schema in torch._C._jit_get_all_schemas() for part in schema.name.split("::")}  # noqa: SLF001
    return {name for name in names if WORD.fullmatch(name)}


def nodes(of_operators: Iterable[str]) -> set[str]:
    """The nodes of autograd's graph without ``Backward0`` at their end: generated ones, and torch's own functions'."""
    command = ["nm", "-DC", "--defined-only", str(TORCH / "lib/libtorch_cpu.so")]
    symbols = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603 - torch's own file
    found = set(re.findall(r"torch::autograd::(?:generated::)?(\w+Backward)\d*\b", symbols))
    found = {name.removesuffix("Backward") for name in found}
    # Of each operator that has, or had, a derivative: older versions have other ones.
    found |= {"".join(part[:1].upper() + part[1:] for part in name.split("_")) for name in of_operators}
    function = re.compile(r"^\s*class (\w+)\((?:torch\.autograd\.)?Function\)", re.MULTILINE)
    for file in TORCH.rglob("*.py"):
        found.update(function.findall(file.read_text("utf-8", "replace")))
    return {name for name in found if WORD.fullmatch(name)}


def runtime_calls() -> set[str]:
    """Functions of CUDA, HIP and their libraries."""
    text = inspect.getsource(cuda_to_hip_mappings)
    found = set(re.findall(r'"((?:cuda|cu|hip|nccl|rccl|cublas|hipblas|cudnn|miopen|nvtx|roctx)[A-Z]\w*)"', text))
    return found | set(ONLY_EVENTS.split())


def kernels() -> set[str]:
    """The words of kernels that are public, and of what their templates are filled with."""
    found: set[str] = set()
    for line in KERNELS.read_text("utf-8").splitlines()[1:]:
        found.update(WORD.findall(line.partition("\t")[0]))
    for folder in ("include/ATen/native/cuda", "include/ATen/cuda"):
        for file in sorted((TORCH / folder).rglob("*.*h")):
            text = re.sub(r"//.*|/\*.*?\*/", " ", file.read_text("utf-8", "replace"))
            found.update(re.findall(r"(?:struct|class)\s+([A-Za-z_]\w+)", text))
            found.update(re.findall(r"\b(\w*(?:[Kk]ernel|[Ff]unctor|Ops?)\w*)\b", text))
    for name in recorded():
        if NAMESPACES.search(name) or name.startswith("_ZN"):
            found.update(words_of(name))
    return {name for name in found if WORD.fullmatch(name) and len(name) > 1}


def recorded() -> set[str]:
    """Names of kernels in published recordings, where they are beside the repository."""
    from whystall.trace.load import load_traces  # noqa: PLC0415 - the rest works without

    found: set[str] = set()
    for folder in ("traces", "recordings"):
        for file in sorted((ROOT.parent / "shared" / folder).glob("*.json.gz")):
            for trace in load_traces(file):
                found.update(trace.device_events["name"].cast(str).unique().to_list())
    return found


def words_of(name: str) -> list[str]:
    """The words of a name; of a mangled one, the identifiers in it."""
    if not name.startswith("_Z"):
        return WORD.findall(name)
    found, at = [], 2
    while number := re.compile(r"\d+").search(name, at):
        size, at = int(number.group()), number.end()
        follows = name[at : at + size]
        if (
            len(follows) == size > 1
            and WORD.fullmatch(follows)
            and number.start()
            and name[number.start() - 1] not in "iTS"
        ):
            found.append(follows)
            at += size
    return found


def modules() -> set[str]:
    """Classes of torch.nn and torch.optim."""
    spaces = (torch.nn, torch.optim, torch.optim.lr_scheduler, torch.utils.data, torch.nn.parallel)
    return {name for space in spaces for name in dir(space) if inspect.isclass(getattr(space, name))}


def parts(names: Iterable[str]) -> set[str]:
    """The letters of generated names, between digits and underscores."""
    families = set(FAMILIES.split())
    found = set(PARTS.split())
    for name in names:
        runs = LETTERS.findall(name)
        if runs and runs[0] in families:
            found.update(runs)
    return {part for part in found if len(part) > 1}


def fused(of_operators: Iterable[str]) -> set[str]:
    """The parts of the names that Inductor gives to Triton's kernels."""
    of_names = {part for name in of_operators for part in LETTERS.findall(name) if len(part) > 1}
    return of_names | {"triton", "poi", "per", "red", "for", "tem", "spl", "unk", "fused", "de"}


def main() -> None:
    """Writes the file."""
    of_kernels, of_operators, at = kernels(), operators(), f"PyTorch {VERSION}"
    tables = (
        ("operators", f"operators of {at}: torch._C._jit_get_all_schemas()", of_operators),
        ("nodes", f"nodes of autograd, {at}: symbols, operators, Python files", nodes(of_operators)),
        ("libraries", "operators and functions of public libraries beside PyTorch", set(OF_LIBRARIES.split())),
        ("calls", f"CUDA, HIP and their libraries: torch.utils.hipify of {at}", runtime_calls()),
        ("kernels", f"tests/analysis/kernel_names.tsv, headers of {at}, published recordings", of_kernels),
        ("modules", f"classes of torch.nn, torch.optim and torch.utils.data, {at}", modules()),
        ("families", "how generated names of kernels begin", set(FAMILIES.split())),
        ("parts", "what they are put together from", parts([*of_kernels, *recorded()])),
        ("fused", f"parts of the names of fused kernels: of operators, {at}", fused(of_operators)),
    )
    lines = [line for name, source, names in tables for line in (f"[{name}] {source}", *sorted(names))]
    TARGET.write_text("\n".join([*lines, ""]), "utf-8")
    print(f"wrote {TARGET}: {', '.join(f'{len(names)} {name}' for name, _, names in tables)}")


if __name__ == "__main__":
    main()
