"""Small forward passes with their exact FLOPs (1 MAC = 2 FLOPs; matmul, convolution and attention only).

Each entry of CASES builds (module, args, expected forward FLOPs). `bilinear` and `fft` follow whystall's conventions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.nn.functional import linear as early_linear
from torch.utils.checkpoint import checkpoint

Case = tuple[Any, tuple[Any, ...], int]


class Fn(nn.Module):
    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


R = torch.randn
CASES: dict[str, Callable[[], Case]] = {}


def case(name: str) -> Callable[[Callable[[], Case]], None]:
    def add(build: Callable[[], Case]) -> None:
        CASES[name] = build

    return add


@case("linear")
def linear() -> Case:
    return nn.Linear(64, 32), (R(4, 8, 64),), 2 * 32 * 64 * 32


@case("sdpa_pos")
def sdpa_pos() -> Case:
    q = R(2, 8, 64, 32)
    return Fn(lambda s, q: F.scaled_dot_product_attention(q, q, q)), (q,), 4 * 2 * 8 * 64 * 64 * 32


@case("sdpa_kwargs")
def sdpa_kwargs() -> Case:
    q = R(2, 8, 64, 32)
    return Fn(lambda s, q: F.scaled_dot_product_attention(query=q, key=q, value=q)), (q,), 4 * 2 * 8 * 64 * 64 * 32


@case("sdpa_causal")  # executed dense count = full; useful (masked) = (S+1)/2S
def sdpa_causal() -> Case:
    q = R(2, 8, 64, 32)
    return Fn(lambda s, q: F.scaled_dot_product_attention(q, q, q, is_causal=True)), (q,), 4 * 2 * 8 * 64 * 64 * 32


@case("sdpa_gqa")
def sdpa_gqa() -> Case:
    q = R(2, 8, 64, 32)
    k = R(2, 2, 64, 32)
    return (
        Fn(lambda s, q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True)),
        (q, k),
        4 * 2 * 8 * 64 * 64 * 32,
    )


@case("sdpa_mla_dv")  # d_qk != d_v
def sdpa_mla_dv() -> Case:
    q = R(2, 4, 64, 48)
    v = R(2, 4, 64, 32)
    return Fn(lambda s, q, v: F.scaled_dot_product_attention(q, q, v)), (q, v), 2 * 2 * 4 * 64 * 64 * (48 + 32)


@case("mha_train")
def mha_train() -> Case:
    m = nn.MultiheadAttention(64, 4, batch_first=True)
    m.train()
    return (
        Fn(lambda s, x: s.m(x, x, x, need_weights=False)[0], m=m),
        (R(2, 16, 64),),
        2 * 32 * 64 * 64 * 4 + 4 * 2 * 16 * 16 * 64,
    )


@case("mha_eval_fastpath")
def mha_eval_fastpath() -> Case:
    m = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True).eval()
    return m, (R(2, 16, 64),), 2 * 32 * 64 * 64 * 4 + 4 * 2 * 16 * 16 * 64 + 2 * 2 * 32 * 64 * 256


@case("einsum_2op")
def einsum_2op() -> Case:
    return Fn(lambda s, a, b: torch.einsum("bij,bjk->bik", a, b)), (R(3, 8, 16), R(3, 16, 4)), 2 * 3 * 8 * 16 * 4


@case("einsum_list")
def einsum_list() -> Case:
    return Fn(lambda s, a, b: torch.einsum("bij,bjk->bik", [a, b])), (R(3, 8, 16), R(3, 16, 4)), 2 * 3 * 8 * 16 * 4


@case("einsum_ellipsis")
def einsum_ellipsis() -> Case:
    return Fn(lambda s, a, b: torch.einsum("...ij,jk->...ik", a, b)), (R(3, 8, 16), R(16, 4)), 2 * 3 * 8 * 16 * 4


@case("matmul_operator")
def matmul_operator() -> Case:
    return Fn(lambda s, a, b: a @ b), (R(3, 8, 16), R(16, 4)), 2 * 3 * 8 * 16 * 4


@case("matmul_vec")
def matmul_vec() -> Case:
    return Fn(lambda s, a, b: torch.matmul(a, b)), (R(8, 16), R(16)), 2 * 8 * 16


@case("matmul_bcast")  # [8,16]@[3,16,4]
def matmul_bcast() -> Case:
    return Fn(lambda s, a, b: torch.matmul(a, b)), (R(8, 16), R(3, 16, 4)), 2 * 3 * 8 * 16 * 4


@case("bmm")
def bmm() -> Case:
    return Fn(lambda s, a, b: torch.bmm(a, b)), (R(3, 8, 16), R(3, 16, 4)), 2 * 3 * 8 * 16 * 4


@case("baddbmm")
def baddbmm() -> Case:
    return Fn(lambda s, c, a, b: torch.baddbmm(c, a, b)), (R(3, 8, 4), R(3, 8, 16), R(3, 16, 4)), 2 * 3 * 8 * 16 * 4


@case("baddbmm_kw")
def baddbmm_kw() -> Case:
    return (
        Fn(lambda s, c, a, b: torch.baddbmm(c, batch1=a, batch2=b)),
        (R(3, 8, 4), R(3, 8, 16), R(3, 16, 4)),
        2 * 3 * 8 * 16 * 4,
    )


@case("mv")
def mv() -> Case:
    return Fn(lambda s, a, b: torch.mv(a, b)), (R(8, 16), R(16)), 2 * 8 * 16


@case("grouped_mm")
def grouped_mm() -> Case:
    return (
        Fn(lambda s, a, b, o: torch._grouped_mm(a, b, offs=o)),
        (R(32, 64).bfloat16(), R(4, 64, 128).bfloat16(), torch.tensor([8, 16, 24, 32], dtype=torch.int32)),
        2 * 32 * 64 * 128,
    )


@case("scaled_mm_fp8")
def scaled_mm_fp8() -> Case:
    a = R(32, 64).to(torch.float8_e4m3fn)
    b = R(16, 64).to(torch.float8_e4m3fn).t()
    o = torch.ones(())
    return (
        Fn(lambda s, a, b, o: torch._scaled_mm(a, b, scale_a=o, scale_b=o, out_dtype=torch.bfloat16)),
        (a, b, o),
        2 * 32 * 64 * 16,
    )


@case("int_mm")
def int_mm() -> Case:
    return (
        Fn(lambda s, a, b: torch._int_mm(a, b)),
        (torch.ones(32, 64, dtype=torch.int8), torch.ones(64, 16, dtype=torch.int8)),
        2 * 32 * 64 * 16,
    )


@case("dyn_quant_linear")
def dyn_quant_linear() -> Case:
    m = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(64, 32)), {nn.Linear}, dtype=torch.qint8)
    return m, (R(8, 64),), 2 * 8 * 64 * 32


@case("conv2d")
def conv2d() -> Case:
    return nn.Conv2d(8, 16, 3, padding=1, bias=False), (R(2, 8, 10, 10),), 2 * 2 * 16 * 8 * 9 * 100


@case("conv2d_grouped")
def conv2d_grouped() -> Case:
    return nn.Conv2d(8, 16, 3, padding=1, groups=4, bias=False), (R(2, 8, 10, 10),), 2 * 2 * 16 * 2 * 9 * 100


@case("conv2d_same_even")
def conv2d_same_even() -> Case:
    return nn.Conv2d(8, 16, 4, padding="same", bias=False), (R(2, 8, 10, 10),), 2 * 2 * 16 * 8 * 16 * 100


@case("conv2d_unbatched")
def conv2d_unbatched() -> Case:
    return nn.Conv2d(8, 16, 3, padding=1, bias=False), (R(8, 10, 10),), 2 * 16 * 8 * 9 * 100


@case("conv2d_liststride")
def conv2d_liststride() -> Case:
    return (
        Fn(lambda s, x, w: F.conv2d(x, w, stride=[2, 2], padding=[1, 1])),
        (R(2, 8, 10, 10), R(16, 8, 3, 3)),
        2 * 2 * 16 * 8 * 9 * 25,
    )


@case("convT2d")
def conv_t2d() -> Case:
    return nn.ConvTranspose2d(8, 16, 3, stride=2, padding=1, bias=False), (R(2, 8, 10, 10),), 2 * 2 * 8 * 16 * 9 * 100


@case("lstm_bi2")
def lstm_bi2() -> Case:
    return (
        Fn(lambda s, x: s.m(x)[0], m=nn.LSTM(16, 32, 2, bidirectional=True, batch_first=True)),
        (R(4, 10, 16),),
        2 * 2 * 4 * 10 * (4 * 32 * (16 + 32) + 4 * 32 * (64 + 32)),
    )


@case("adaptive_pool_kw")
def adaptive_pool_kw() -> Case:
    return (
        Fn(lambda s, x: s.layer(F.adaptive_avg_pool2d(x, output_size=1).flatten(1)), layer=nn.Linear(8, 4, bias=False)),
        (R(2, 8, 10, 10),),
        2 * 2 * 8 * 4,
    )


@case("early_bound_linear")
def early_bound_linear() -> Case:
    return Fn(lambda s, x: early_linear(x, s.w), w=nn.Parameter(R(32, 64))), (R(8, 64),), 2 * 8 * 64 * 32


@case("shared_module_x3")
def shared_module_x3() -> Case:
    layer = nn.Linear(64, 64, bias=False)
    m = nn.Sequential(layer, layer, layer)
    return m, (R(8, 64),), 3 * 2 * 8 * 64 * 64


@case("shared_aliased_attrs")
def shared_aliased_attrs() -> Case:
    layer = nn.Linear(64, 64, bias=False)
    return Fn(lambda s, x: s.a(s.b(s.c(x))), a=layer, b=layer, c=layer), (R(8, 64),), 3 * 2 * 8 * 64 * 64


@case("never_called_module")
def never_called_module() -> Case:
    return Fn(lambda s, x: s.a(x), a=nn.Linear(64, 32, bias=False), b=nn.Linear(64, 9999)), (R(8, 64),), 2 * 8 * 64 * 32


@case("direct_forward_call")
def direct_forward_call() -> Case:
    return Fn(lambda s, x: s.a.forward(x), a=nn.Linear(64, 32, bias=False)), (R(8, 64),), 2 * 8 * 64 * 32


@case("func_in_root")
def func_in_root() -> Case:
    return Fn(lambda s, x: F.linear(x, s.w) @ s.w, w=nn.Parameter(R(32, 64))), (R(8, 64),), 2 * 2 * 8 * 64 * 32


@case("compiled")
def compiled() -> Case:
    return (
        torch.compile(
            nn.Sequential(nn.Linear(64, 32, bias=False), nn.ReLU(), nn.Linear(32, 16, bias=False)), backend="aot_eager"
        ),
        (R(8, 64),),
        2 * 8 * (64 * 32 + 32 * 16),
    )


@case("compiled_warm")
def compiled_warm() -> Case:
    m = torch.compile(
        nn.Sequential(nn.Linear(64, 32, bias=False), nn.ReLU(), nn.Linear(32, 16, bias=False)), backend="aot_eager"
    )
    m(R(8, 64))
    return m, (R(8, 64),), 2 * 8 * (64 * 32 + 32 * 16)


@case("custom_op")
def custom_op() -> Case:
    if not hasattr(torch.ops.whystall_cases, "mm2"):
        torch.library.custom_op("whystall_cases::mm2", mutates_args=())(_mm2)
    return Fn(lambda s, a, b: torch.ops.whystall_cases.mm2(a, b)), (R(8, 16), R(16, 4)), 2 * 8 * 16 * 4


def _mm2(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(a.detach().numpy() @ b.detach().numpy())


@case("ckpt_fwd")
def ckpt_fwd() -> Case:
    return (
        Fn(lambda s, x: checkpoint(s.layer, x, use_reentrant=False), layer=nn.Linear(64, 64, bias=False)),
        (R(8, 64, requires_grad=True),),
        2 * 8 * 64 * 64,
    )


@case("addmm")
def addmm() -> Case:
    return Fn(lambda s, c, a, b: torch.addmm(c, a, b)), (R(4), R(8, 16), R(16, 4)), 2 * 8 * 16 * 4


@case("bilinear")
def bilinear() -> Case:
    return nn.Bilinear(8, 16, 4, bias=False), (R(5, 8), R(5, 16)), 2 * 5 * 4 * 8 * 16 + 2 * 5 * 4 * 8


@case("fft")
def fft() -> Case:
    return Fn(lambda s, x: torch.fft.fft(x).real), (R(4, 64),), 0


@case("embedding_bag")
def embedding_bag() -> Case:
    return nn.Embedding(100, 16), (torch.randint(0, 100, (4, 8)),), 0
