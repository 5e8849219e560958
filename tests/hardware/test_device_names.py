"""Thirty-two names as drivers print them: each finds its own row, or nothing at all.

Other tables fall back without a word (an H800 read as an A100), or find a part of another name ("L4" in "L40S"). The
names are those of the project's comparison of tables as far as it spells them out, and for the rest those of the parts
in it.
"""

from __future__ import annotations

import pytest

from whystall.hardware import find
from whystall.hardware.accelerators import PRECISIONS, Precision, table

# name, row, dense bf16 in TFLOP/s as data sheets print it (of one device as the driver shows it)
NAMES = (
    ("Tesla V100-SXM2-16GB", "V100 SXM2", None),
    ("Tesla V100-PCIE-32GB", "V100 PCIe", None),
    ("Tesla T4", "T4", None),
    ("NVIDIA A10", "A10", 125),
    ("NVIDIA A10G", "A10G", None),  # sources contradict each other
    ("NVIDIA A30", "A30", 165),
    ("NVIDIA A40", "A40", 149.7),
    ("NVIDIA RTX A6000", "RTX A6000", 154.85),
    ("NVIDIA L4", "L4", 121),
    ("NVIDIA L40", "L40", 181),
    ("NVIDIA L40S", "L40S", 362),
    ("NVIDIA A100-SXM4-40GB", "A100 SXM 40GB", 312),
    ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB", 312),
    ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB", 312),
    ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB", 312),
    ("NVIDIA A800-SXM4-80GB", "A800 SXM 80GB", 312),
    ("NVIDIA H20", "H20 96GB", 148),
    ("NVIDIA H100 80GB HBM3", "H100 SXM", 989),
    ("NVIDIA H100 PCIe", "H100 PCIe", 756),
    ("NVIDIA H100 NVL", "H100 NVL", 835),
    ("NVIDIA H800", "H800 SXM", 989),
    ("NVIDIA H200", "H200 SXM", 989),
    ("NVIDIA GH200 480GB", "GH200 96GB", 989),
    ("NVIDIA B200", "B200 SXM", 2250),
    ("NVIDIA GB200", "GB200 (per GPU)", 2500),
    ("NVIDIA B300 SXM6 AC", "B300 SXM", 2250),
    ("NVIDIA GeForce RTX 3090", "RTX 3090", 71),
    ("NVIDIA GeForce RTX 4090", "RTX 4090", 165.2),
    ("NVIDIA GeForce RTX 5090", "RTX 5090", 209.5),
    ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada", None),  # no source for its matrix units
    ("AMD Instinct MI250X", "MI250X", 191.5),  # one of two devices in a package
    ("AMD Instinct MI300X", "MI300X", 1307.4),
)


def test_there_are_thirty_two_names() -> None:
    assert len({name for name, _, _ in NAMES}) == 32


@pytest.mark.parametrize(("name", "row", "bf16"), NAMES, ids=[name for name, _, _ in NAMES])
def test_a_name_finds_its_own_row_and_peak(name: str, row: str, bf16: float | None) -> None:
    found = find(name)
    assert found is not None
    assert (found.name, found.bf16_tflops) == (row, bf16)


@pytest.mark.parametrize(("name", "row", "bf16"), NAMES, ids=[name for name, _, _ in NAMES])
def test_a_name_with_one_letter_more_is_unknown_or_says_which_it_is(name: str, row: str, bf16: float | None) -> None:
    """No row is found by a part of a longer model's name."""
    other = find(f"{name.removesuffix(' Generation')}X")
    assert other is None or (other.name, other.bf16_tflops) == (row, bf16)


WITHOUT_FP8 = ("Tesla V100-SXM2-16GB", "Tesla T4", "NVIDIA A10", "NVIDIA A100-SXM4-80GB", "AMD Instinct MI250X")
WITHOUT_FP4 = (*WITHOUT_FP8, "NVIDIA L40S", "NVIDIA H100 80GB HBM3", "NVIDIA H200", "AMD Instinct MI300X")


@pytest.mark.parametrize(
    ("name", "precision"),
    [*((name, "fp8") for name in WITHOUT_FP8), *((name, "fp4") for name in WITHOUT_FP4)],
)
def test_a_precision_that_a_part_lacks_is_refused_with_a_reason(name: str, precision: Precision) -> None:
    found = find(name)
    assert found is not None
    assert found.peak_flops_per_s(precision) is None
    assert found.why_no_peak(precision) == f"the table of accelerators has no {precision} peak for {found.name}"


def test_of_every_row_and_precision_there_is_either_a_peak_or_a_reason() -> None:
    for row in table():
        for precision in PRECISIONS:
            assert (row.peak_flops_per_s(precision) is None) == (row.why_no_peak(precision) is not None)
