"""Devices whose names tell nothing, as recorded traces describe them: known by what else they tell, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from whystall.analysis.trace_analysis import analyze_trace
from whystall.hardware import find
from whystall.hardware.accelerators import table
from whystall.hardware.recognition import Traits, recognise
from whystall.testing import trace

GIB = 2**30
# What recorded traces say in deviceProperties.
V100_DGX = Traits(capability=(7, 0), units=80, memory_bytes=34_084_028_416)
A100_PG509 = Traits(capability=(8, 0), units=108, memory_bytes=42_297_524_224)
A100_80 = Traits(capability=(8, 0), units=108, memory_bytes=85_028_765_696)
GFX942 = Traits(capability=(9, 4), units=304, memory_bytes=206_141_652_992)
MI250 = Traits(capability=(9, 0), units=104, memory_bytes=68_702_699_520)
H100 = Traits(capability=(9, 0), units=132, memory_bytes=85_045_870_592)


@pytest.mark.parametrize(
    ("name", "traits", "half", "memory"),
    [
        ("Tesla V100-DGXS-32GB", V100_DGX, 125, 900),  # a DGX Station: four of 125 are the 500 of its data sheet
        ("NVIDIA A100-PG509-200", A100_PG509, 312, 1555),
        (None, GFX942, 1307.4, 5300),
        ("", GFX942, 1307.4, 5300),
        ("AMD Radeon Graphics", MI250, 362.1 / 2, 3277 / 2),  # an MI210 has 181 and 1600
        ("Graphics Device", H100, 989, 3350),
    ],
)
def test_a_name_that_tells_nothing_is_no_obstacle(name: str | None, traits: Traits, half: float, memory: float) -> None:
    """The peaks of the data sheets, in fp16."""
    found = recognise(name, traits)
    assert found is not None
    assert (found.fp16_tflops, found.memory_gb_per_s) == (half, memory)
    assert found.source.startswith("known by capability")
    assert found.confidence in ("low", "medium")


def test_memory_tells_parts_of_one_name_apart() -> None:
    forty, eighty = recognise("NVIDIA A100-PG509-200", A100_PG509), recognise("NVIDIA A100-PG509-210", A100_80)
    assert forty is not None
    assert eighty is not None
    assert (forty.memory_gb_per_s, eighty.memory_gb_per_s) == (1555, 2039)
    larger = Traits(capability=(9, 4), units=304, memory_bytes=256 * GIB)
    mi325 = recognise(None, larger)
    assert mi325 is not None
    assert mi325.name == "MI325X"


def test_of_parts_that_nothing_tells_apart_only_what_they_agree_on_is_known() -> None:
    """An L40 and an L40S have units, capability and memory in common, and not the rate of their matrix units."""
    found = recognise("NVIDIA Something", Traits(capability=(8, 9), units=142, memory_bytes=round(44.5 * GIB)))
    assert found is not None
    assert found.fp16_tflops is None
    assert found.fp8_tflops is None
    assert found.why_no_peak("bf16") is not None


@pytest.mark.parametrize(
    ("name", "traits"),
    [
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", Traits(capability=(9, 0), units=16, memory_bytes=10 * GIB)),
        ("GRID A100-4C", Traits(capability=(8, 0), units=108, memory_bytes=4 * GIB)),
        ("NVIDIA GeForce GTX 980", Traits(capability=(5, 2), units=16, memory_bytes=4 * GIB)),  # no row is like it
        ("NVIDIA A100-PG509-200", Traits(units=108, memory_bytes=A100_PG509.memory_bytes)),
        (None, Traits()),
    ],
)
def test_other_parts_and_parts_of_parts_stay_unknown(name: str | None, traits: Traits) -> None:
    assert recognise(name, traits) is None


@pytest.mark.parametrize(
    ("name", "traits", "fp32", "tf32"),
    [  # what the makers' data sheets say of these parts
        ("NVIDIA RTX A4500 Laptop GPU", Traits(capability=(8, 6), units=46, memory_bytes=16 * GIB), 18.5, 37.0),
        ("NVIDIA GeForce RTX 3080", Traits(capability=(8, 6), units=70, memory_bytes=12 * GIB), 30.6, 30.6),
        ("NVIDIA GeForce RTX 4090 D", Traits(capability=(8, 9), units=114, memory_bytes=24 * GIB), 73.5, 73.5),
        ("NVIDIA GeForce RTX 4070 SUPER", Traits(capability=(8, 9), units=56, memory_bytes=12 * GIB), 35.5, 35.5),
        ("NVIDIA RTX 2000 Ada Generation", Traits(capability=(8, 9), units=22, memory_bytes=16 * GIB), 12.0, 24.0),
        ("NVIDIA GeForce RTX 2080 SUPER", Traits(capability=(7, 5), units=48, memory_bytes=8 * GIB), 11.2, None),
        ("NVIDIA GeForce GTX 1080", Traits(capability=(6, 1), units=20, memory_bytes=8 * GIB), 8.9, None),
        ("NVIDIA H20", Traits(capability=(9, 0), units=78, memory_bytes=150_754_820_096), 44.0, 74.0),
    ],
)
def test_peaks_of_parts_that_are_not_listed_follow_from_architecture_and_units(
    name: str, traits: Traits, fp32: float, tf32: float | None
) -> None:
    found = recognise(name, traits)
    assert found is not None
    assert found.fp32_tflops == pytest.approx(fp32, rel=0.25)
    assert found.tf32_tflops == (None if tf32 is None else pytest.approx(tf32, rel=0.25))
    assert found.memory_gb_per_s is None
    assert found.confidence == "low"
    assert "derived" in found.source
    assert "derived" in found.name


@pytest.mark.parametrize(
    ("name", "traits"),
    [
        ("NVIDIA A100-SXM4-40GB", Traits(capability=(8, 0), units=98, memory_bytes=A100_PG509.memory_bytes)),
        ("AMD Instinct MI300X", Traits(capability=(9, 4), units=38, memory_bytes=GFX942.memory_bytes)),
    ],
)
def test_a_device_with_fewer_units_than_its_name_s_part_has_a_fraction_of_its_peaks(name: str, traits: Traits) -> None:
    """A partition by MIG, by MPS or by AMD's modes, which the name does not show."""
    assert find(name) is not None
    assert recognise(name, traits) is None


def test_a_known_name_is_taken_at_its_word_where_nothing_else_is_told() -> None:
    assert recognise("NVIDIA H100 80GB HBM3", Traits()) == find("NVIDIA H100 80GB HBM3")
    assert recognise("NVIDIA H100 80GB HBM3", H100) == find("NVIDIA H100 80GB HBM3")


def test_every_part_with_known_traits_is_recognised_without_its_name_as_one_that_is_no_slower() -> None:
    for row in table():
        if row.capability is None or row.compute_units is None or not row.memory_gb:
            continue
        for size in row.memory_gb:
            traits = Traits(capability=row.capability, units=row.compute_units, memory_bytes=round(size * 0.99 * GIB))
            found = recognise(None, traits)
            assert found is not None, row.name
            assert row.name in found.name.split(" or ")
            for rate in ("fp16_tflops", "bf16_tflops", "memory_gb_per_s"):
                told, true = getattr(found, rate), getattr(row, rate)
                assert told is None or true <= told <= true * 1.15, (row.name, rate)


@pytest.mark.parametrize(("listed", "used"), [(0, 0), (0, 9)])
def test_a_trace_without_a_name_is_rated(listed: int, used: int) -> None:
    """ROCm numbers a device 9 of which it lists one as 0."""
    properties: dict[str, Any] = {
        "id": listed, "name": "", "totalGlobalMem": GFX942.memory_bytes, "computeMajor": 9, "computeMinor": 4,
        "numSms": 304, "warpSize": 64,
    }  # fmt: skip
    built = trace(deviceProperties=[properties])
    shapes: dict[str, Any] = {"Input Dims": [[1000, 1000]] * 2, "Input type": ["c10::Half"] * 2}
    built.operator("aten::mm", at=0, lasts=9_000, **shapes)
    built.launch("Cijk_Alik", at=1_000, runs_at=20_000, lasts=10_000, device=used)
    (rated,) = analyze_trace(built.load()).efficiency
    assert rated.peak == "MI300X"
    assert rated.mfu == pytest.approx(2 * 1000**3 / 10e-6 / 1307.4e12)


def test_architectures_of_two_vendors_may_have_one_number() -> None:
    """(9, 0) is NVIDIA's Hopper and AMD's gfx90a."""
    found = recognise("NVIDIA H100 64GB HBM2", Traits(capability=(9, 0), units=120, memory_bytes=64 * GIB))
    assert found is not None
    assert found.vendor == "NVIDIA"
    assert "MI2" not in found.source
