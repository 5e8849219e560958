# ruff: noqa: PLR0911 - a table of names
"""Devices that the traces pretend to come from: what a data sheet says, in TFLOP/s and GB/s."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """One accelerator."""

    name: str
    capability: tuple[int, int]
    sms: int
    memory: int
    fp32: float
    tf32: float
    half: float
    bandwidth: float
    link: float
    pcie: float
    rocm: bool = False


DEVICES = {
    "V100": Device("Tesla V100-SXM2-32GB", (7, 0), 80, 34089730048, 15.7, 0, 125, 900, 130, 11),
    "A100": Device("NVIDIA A100-SXM4-80GB", (8, 0), 108, 85051572224, 19.5, 156, 312, 2039, 235, 22),
    "H100": Device("NVIDIA H100 80GB HBM3", (9, 0), 132, 85029158912, 67, 494, 989, 3350, 360, 48),
    "B200": Device("NVIDIA B200", (10, 0), 148, 191496519680, 80, 1125, 2250, 8000, 680, 50),
    "L4": Device("NVIDIA L4", (8, 9), 58, 23580639232, 30.3, 60, 121, 300, 12, 22),
    "4090": Device("NVIDIA GeForce RTX 4090", (8, 9), 128, 25386352640, 82.6, 82.6, 165, 1008, 12, 22),
    "MI300X": Device("AMD Instinct MI300X", (9, 4), 304, 206141652992, 163, 653, 1307, 5300, 310, 48, True),
}
SIZES = {"bf16": 2, "fp16": 2, "fp32": 4, "tf32": 4}
TYPES = {"bf16": "c10::BFloat16", "fp16": "c10::Half", "fp32": "float", "tf32": "float"}


def gemm_name(device: Device, dtype: str, how: str = "") -> str:
    """The kernel that the vendor's library would pick; `how` is "" or "align1" (shapes that suit no tensor core)."""
    layout = "tn"
    if device.rocm:
        kind = {"bf16": "BBS_BH", "fp16": "HHS_BH", "fp32": "S_B", "tf32": "SB_X"}[dtype]
        return f"Cijk_Alik_Bljk_{kind}_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1_SN_LDSB1_AFC1_AG0_AFEM1"
    if how == "align1":
        kind = "bf16_s16816gemm_bf16" if dtype == "bf16" else "f16_s16816gemm_f16"
        return f"void cutlass::Kernel2<cutlass_80_tensorop_{kind}_64x64_32x6_{layout}_align1>(Params)"
    if dtype == "fp32":
        family = "volta" if device.capability[0] == 7 else "ampere"
        return f"{family}_sgemm_128x64_{layout}"
    if dtype == "tf32":
        return f"void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_{layout}_align4>(Params)"
    short = "bf16" if dtype == "bf16" else "f16"
    if device.capability[0] == 7:
        return f"volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_{layout}"
    if device.capability[0] == 9:
        return f"nvjet_{'t' if dtype == 'bf16' else 'h'}st_128x256_64x4_2x1_v_bz_coopA_{layout.upper()}"
    if device.capability[0] == 10:
        return f"nvjet_sm100_tst_128x256_64x6_2x1_2cta_v_bz_{layout.upper()}"
    return f"ampere_{short}_s16816gemm_{short}_128x256_ldg8_f2f_stages_64x3_{layout}"
