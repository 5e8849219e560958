from __future__ import annotations

import dataclasses
import re

import pytest

from whystall.hardware import find
from whystall.hardware.accelerators import table


@pytest.mark.parametrize(
    ("device", "row"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("NVIDIA GH200 144G HBM3e", "GH200 144GB"),
        ("NVIDIA H800", "H800 SXM"),
        ("NVIDIA H20", "H20 96GB"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM 40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("Tesla V100-SXM2-32GB", "V100 SXM2"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("NVIDIA GeForce RTX 3090 Ti", "RTX 3090 Ti"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA B200", "B200 SXM"),
        ("NVIDIA GB200", "GB200 (per GPU)"),
        ("AMD Instinct MI210", "MI210"),
        ("AMD Instinct MI250X", "MI250X"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI300X VF", "MI300X"),
        ("AMD Instinct MI325X", "MI325X"),
    ],
)
def test_a_driver_name_finds_its_own_row(device: str, row: str) -> None:
    found = find(device)

    assert found is not None
    assert found.name == row


@pytest.mark.parametrize(
    "device",
    [
        "",
        " ",
        "AMD Radeon Graphics",
        "NVIDIA T400 4GB",
        "GRID A100D-80C",
        "Orin",
        "NVIDIA GeForce RTX 3080 Laptop GPU",
        "NVIDIA GeForce RTX 3080 Ti Laptop GPU",
        "NVIDIA GeForce RTX 4070 SUPER",
        "NVIDIA GeForce RTX 2080 Ti with Max-Q Design",
        "NVIDIA RTX A5000 Laptop GPU",
        "NVIDIA RTX 5000 Ada Generation Laptop GPU",
        "NVIDIA RTX PRO 5000 Blackwell Generation Laptop GPU",
        "Quadro RTX 6000 with Max-Q Design",
        "Quadro RTX 5000",
        "Quadro RTX 4000",
        "NVIDIA TITAN Xp",
        "TITAN V CEO EDITION",
        "Tesla V100S-PCIE-32GB",
        "NVIDIA GeForce GTX 1080",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 5090 Laptop GPU",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "NVIDIA H800 PCIe",
        "AMD Instinct MI308X",
        "AMD Instinct MI250X / MI250",
    ],
)
def test_what_no_row_knows_finds_nothing(device: str) -> None:
    assert find(device) is None


def test_no_name_matches_two_rows_equally_well() -> None:
    devices = ["NVIDIA H100 80GB HBM3", "NVIDIA GB200", "NVIDIA GB300", "NVIDIA L40S", "Tesla V100-SXM2-16GB"]

    assert all(sum(bool(re.search(row.device_name_regex, device)) for row in table()) == 1 for device in devices)


def test_a_cell_without_a_source_is_unknown_and_not_zero() -> None:
    a10g = find("NVIDIA A10G")

    assert a10g is not None
    assert a10g.bf16_tflops is None
    assert a10g.peak_flops_per_s("bf16") is None
    assert a10g.confidence == "conflict"


def test_every_row_carries_its_source_and_a_pattern_that_compiles() -> None:
    assert len(table()) > 50
    for row in table():
        assert row.source
        assert row.confidence in {"high", "medium", "low", "conflict"}
        re.compile(row.device_name_regex)
        assert not any(value == 0 for value in dataclasses.astuple(row))


def test_memory_hint_rules_out_rows_of_another_size() -> None:
    assert find("NVIDIA H20", memory_gb=96) is not None
    assert find("NVIDIA H20", memory_gb=141) is None
    assert find("Tesla V100-SXM2-16GB", memory_gb=15.8) is not None


def test_memory_hint_accepts_what_drivers_report_for_the_size_on_the_label() -> None:
    assert find("NVIDIA H100 80GB HBM3", memory_gb=79.1) is not None
    assert find("NVIDIA H100 80GB HBM3", memory_gb=85.5) is not None


def test_a_package_of_two_devices_is_halved() -> None:
    mi250x = find("AMD Instinct MI250X")

    assert mi250x is not None
    assert mi250x.bf16_tflops == 191.5
    assert mi250x.memory_gb == (64,)
    assert mi250x.compute_units == 110


def test_units_are_decimal() -> None:
    h100 = find("NVIDIA H100 80GB HBM3")

    assert h100 is not None
    assert h100.memory_bytes_per_s == 3.35e12
    assert h100.peak_flops_per_s("fp8") == 1.979e15
