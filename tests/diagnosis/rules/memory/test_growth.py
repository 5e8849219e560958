"""memory.growth: memory that rises over the run is told, on the host and on a device;
a small or a single rise is not.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.diagnosis.cases import found_in_runs, run

from whystall.analysis.run_results import MemoryRise
from whystall.run_folder.observations import Observations, PaddedBatches

MIB = 1 << 20


def rising(rise_mib: int, *, device: int | None = None, start_mib: int = 1024) -> MemoryRise:
    return MemoryRise(device=device, start_bytes=start_mib * MIB, rise_bytes=rise_mib * MIB, over_steps=50)


@pytest.mark.parametrize(
    ("rise", "where"),
    [
        (rising(100), "resident memory"),
        (rising(20, start_mib=100), "resident memory"),
        (rising(100, device=1), "memory allocated on device 1"),
        (rising(2048, start_mib=40_000), "resident memory"),  # 5.1 % of much
    ],
)
def test_memory_that_grows_has_no_gain_and_is_told(rise: MemoryRise, where: str) -> None:
    finding = found_in_runs(run(memory_rises=[rise]))["memory.growth"]
    assert finding.gain is None
    assert finding.evidence[0].what == f"{where} rises by"
    per_step = next(one for one in finding.evidence if one.per == "step")
    assert per_step.value == pytest.approx(rise.rise_bytes / 50, abs=1)


@pytest.mark.parametrize(
    "rise",
    [
        rising(40),  # 4 % of where it began
        rising(15, start_mib=100),  # 15 %, of which a cache is enough
        rising(0, device=0),
        rising(1900, start_mib=40_000),  # 4.75 %
    ],
)
def test_what_hardly_grows_is_none(rise: MemoryRise) -> None:
    assert "memory.growth" not in found_in_runs(run(memory_rises=[rise]))


def test_a_few_steps_say_nothing() -> None:
    assert "memory.growth" not in found_in_runs(run(memory_rises=[rising(500)], steps=6))


def test_a_run_whose_memory_stays_is_healthy() -> None:
    assert found_in_runs(run()) == {}


def test_steps_that_become_longer_with_it_cost_time() -> None:
    """Steps of 10 ms at first, 16 ms on average: a step is worth 6 of 16 ms."""
    rise = replace(rising(100), first_step_ns=10_000_000, mean_step_ns=16_000_000)
    finding = found_in_runs(run(memory_rises=[rise]))["memory.growth"]
    assert finding.gain is not None
    assert finding.gain.expected == pytest.approx(1.6, rel=0.01)
    assert finding.gain.floor < 1.25 < finding.gain.expected < finding.gain.ceiling
    assert "longer as it rises" in finding.title


@pytest.mark.parametrize(("longer", "told"), [(True, True), (False, False)])
def test_half_of_it_is_enough_where_steps_become_longer_as_well(*, longer: bool, told: bool) -> None:
    rise = rising(10, start_mib=100)
    if longer:
        rise = replace(rise, first_step_ns=10_000_000, mean_step_ns=16_000_000)
    assert ("memory.growth" in found_in_runs(run(memory_rises=[rise]))) is told


def test_the_gain_is_of_the_steps_that_all_else_is_told_of() -> None:
    """The latest window is of steps of 20 ms on average, those in which memory rose took 100 ms in place of 15."""
    rise = replace(rising(100), first_step_ns=15_000_000, mean_step_ns=100_000_000)
    gain = found_in_runs(run(memory_rises=[rise], total_ns=100 * 20_000_000))["memory.growth"].gain
    assert gain is not None
    assert gain.expected == pytest.approx(20 / 15, rel=0.01)
    # of steps before any of that nothing is lost: the growth is told all the same
    before = found_in_runs(run(memory_rises=[rise], total_ns=100 * 15_100_000))["memory.growth"]
    assert before.gain is None


@pytest.mark.parametrize(
    ("sizes", "rise_mib", "heap", "counts"),
    [
        (17, 60, True, False),  # a library keeps something for each size
        (8, 60, True, True),  # sizes come again, and memory rises all the same
        (17, 200, True, True),
        (17, 60, False, True),
    ],
)
def test_a_rise_beside_batches_of_ever_new_sizes_is_information(
    sizes: int, rise_mib: int, *, heap: bool, counts: bool
) -> None:
    seen = PaddedBatches(
        batches=17,
        positions=(4096, 4096),
        needed=(4096, 4096),
        real=(4096, 4096),
        sizes=[(8, 50 + n) for n in range(sizes)],
    )
    rise = replace(rising(rise_mib), heap=heap)
    assert (
        "memory.growth" in found_in_runs(run(memory_rises=[rise]), observed={0: Observations(padding=seen)})
    ) is counts
