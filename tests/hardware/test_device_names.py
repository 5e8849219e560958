"""Thirty-two names as drivers print them: each finds its own row, or nothing at all.

Other tables fall back without a word (an H800 read as an A100), or find a part of another name ("L4" in "L40S"). The
names are those of the project's comparison of tables as far as it spells them out, and for the rest those of the parts
in it.
"""

from __future__ import annotations

import re

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
    ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada", 364.2),
    ("AMD Instinct MI250X", "MI250X", 191.5),  # one of two devices in a package
    ("AMD Instinct MI300X", "MI300X", 1307.4),
)

# name, row, dense fp16 with accumulation in fp32: cards of workstations, desktops and older servers
MORE_NAMES = (
    ("Tesla P100-SXM2-16GB", "P100 SXM2", 21.2),
    ("Tesla P100-PCIE-16GB", "P100 PCIe 16GB", 18.7),
    ("Tesla P100-PCIE-12GB", "P100 PCIe 12GB", 18.7),
    ("Tesla P40", "P40", None),
    ("GeForce GTX 1080 Ti", "GTX 1080 Ti", None),
    ("NVIDIA GeForce GTX 1080 Ti", "GTX 1080 Ti", None),
    ("TITAN V", "TITAN V", 110),
    ("NVIDIA TITAN V", "TITAN V", 110),
    ("TITAN RTX", "TITAN RTX", 130.5),
    ("NVIDIA TITAN RTX", "TITAN RTX", 130.5),
    ("GeForce RTX 2080 Ti", "RTX 2080 Ti", 56.9),
    ("NVIDIA GeForce RTX 2080 Ti", "RTX 2080 Ti", 56.9),
    ("Quadro RTX 6000", "Quadro RTX 6000", 130.5),
    ("Quadro RTX 8000", "Quadro RTX 8000", 130.5),
    ("NVIDIA GeForce RTX 3060", "RTX 3060", 25.4),
    ("NVIDIA GeForce RTX 3060 Ti", "RTX 3060 Ti", 32.4),
    ("NVIDIA GeForce RTX 3070", "RTX 3070", 40.6),
    ("NVIDIA GeForce RTX 3070 Ti", "RTX 3070 Ti", 43.5),
    ("NVIDIA GeForce RTX 3080", "RTX 3080", 59.5),
    ("NVIDIA GeForce RTX 3080 Ti", "RTX 3080 Ti", 68.2),
    ("NVIDIA GeForce RTX 4060", "RTX 4060", 30.2),
    ("NVIDIA GeForce RTX 4060 Ti", "RTX 4060 Ti", 44.1),
    ("NVIDIA GeForce RTX 4070", "RTX 4070", 58.3),
    ("NVIDIA GeForce RTX 4070 Ti", "RTX 4070 Ti", 80.2),
    ("NVIDIA GeForce RTX 4070 Ti SUPER", "RTX 4070 Ti SUPER", 88.2),
    ("NVIDIA GeForce RTX 4080", "RTX 4080", 97.5),
    ("NVIDIA GeForce RTX 4080 SUPER", "RTX 4080 SUPER", 104.4),
    ("NVIDIA GeForce RTX 5060 Ti", "RTX 5060 Ti", 47.4),
    ("NVIDIA GeForce RTX 5070", "RTX 5070", 61.7),
    ("NVIDIA GeForce RTX 5070 Ti", "RTX 5070 Ti", 87.9),
    ("NVIDIA GeForce RTX 5080", "RTX 5080", 112.6),
    ("NVIDIA RTX A4000", "RTX A4000", 76.7),
    ("NVIDIA RTX A4500", "RTX A4500", 94.6),
    ("NVIDIA RTX A5000", "RTX A5000", 111),
    ("NVIDIA RTX A5500", "RTX A5500", 139),
    ("NVIDIA RTX 4000 Ada Generation", "RTX 4000 Ada", 107),
    ("NVIDIA RTX 4000 SFF Ada Generation", "RTX 4000 SFF Ada", 76.7),
    ("NVIDIA RTX 4500 Ada Generation", "RTX 4500 Ada", 158.5),
    ("NVIDIA RTX 5000 Ada Generation", "RTX 5000 Ada", 261),
    ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada", 364.2),
    ("NVIDIA RTX PRO 4500 Blackwell", "RTX PRO 4500 Blackwell", None),  # sources contradict each other
    ("NVIDIA RTX PRO 5000 Blackwell", "RTX PRO 5000 Blackwell", None),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell", 503.8),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell Server", 500),
    ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX PRO 6000 Blackwell Max-Q", 440),
    ("NVIDIA A2", "A2", 18.1),
    ("NVIDIA A16", "A16", 69.43 / 4),  # one of four devices on a board
    ("NVIDIA L20", "L20", 119.5),
    ("NVIDIA A800 80GB PCIe", "A800 PCIe 80GB", 312),
    ("NVIDIA GH200 120GB", "GH200 96GB", 989),
    ("NVIDIA GH200 144G HBM3e", "GH200 144GB", 989),
    ("AMD Instinct MI100", "MI100", 184.6),
    ("AMD Instinct MI210", "MI210", 181),
    ("AMD Instinct MI250", "MI250", 362.1 / 2),
)


def test_there_are_thirty_two_names() -> None:
    assert len({name for name, _, _ in NAMES}) == 32


@pytest.mark.parametrize(("name", "row", "fp16"), MORE_NAMES, ids=[name for name, _, _ in MORE_NAMES])
def test_a_name_finds_its_row_its_peak_and_no_other_row(name: str, row: str, fp16: float | None) -> None:
    found = find(name)
    assert found is not None
    assert (found.name, found.fp16_tflops) == (row, fp16)
    assert [one.name for one in table() if re.search(one.device_name_regex, name)] == [row]


@pytest.mark.parametrize(("name", "memory_gib"), [("NVIDIA GeForce RTX 3080", 12), ("NVIDIA GeForce RTX 3060", 8)])
def test_a_variant_of_another_size_is_another_part(name: str, memory_gib: float) -> None:
    """A 3080 of 12 GB has more units and a wider bus, a 3060 of 8 GB a narrower one."""
    assert find(name) is not None
    assert find(name, memory_gb=memory_gib * 2**30 / 1e9) is None


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
