from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from whystall.compilation.metrics import phases_of, times_of
from whystall.compilation.results import Phases

FIELDS = (
    "duration_us",
    "backend_compile_time_s",
    "inductor_compile_time_s",
    "inductor_code_gen_cumulative_compile_time_us",
    "triton_compile_time_us",
    "start_time",
)
ODD = st.one_of(st.none(), st.booleans(), st.text(max_size=3), st.floats(), st.integers(), st.lists(st.integers()))


def test_each_phase_leaves_out_the_phases_inside_it() -> None:
    metrics = {
        "duration_us": 10_000_000,
        "aot_autograd_cumulative_compile_time_us": 8_000_000,
        "inductor_compile_time_s": 6.0,
        "code_gen_time_s": 5.0,
        "triton_compile_time_us": 1_000_000,
    }
    times = times_of(metrics)

    assert phases_of(times, 10**10, 3 * 10**9, backward=False) == Phases(
        dynamo_ns=2 * 10**9, aot_ns=2 * 10**9, inductor_ns=10**9, code_ns=2 * 10**9, kernels_ns=3 * 10**9
    )
    # Without events the metrics' own time of kernels counts; a backward graph has no Dynamo.
    assert phases_of(times, 10**10, 0, backward=True) == Phases(
        dynamo_ns=0, aot_ns=4 * 10**9, inductor_ns=10**9, code_ns=4 * 10**9, kernels_ns=10**9
    )


def test_a_hit_waits_for_kernels_within_autograd() -> None:
    times = times_of({"duration_us": 1_334_062, "backend_compile_time_s": 1.319651, "triton_compile_time_us": 2805})

    found = phases_of(times, 1_334_062_000, 198_000_000, backward=False)

    assert found == Phases(dynamo_ns=14_411_000, aot_ns=1_121_651_000, kernels_ns=198_000_000)


@given(st.dictionaries(st.sampled_from(FIELDS), ODD), st.integers(0, 1 << 60), st.booleans())
def test_phases_add_up_whatever_a_record_says(metrics: dict[str, Any], waited_ns: int, backward: bool) -> None:
    times = times_of(metrics)
    total_ns = times.total_ns or 0

    found = phases_of(times, total_ns, waited_ns, backward=backward)

    assert found.total_ns == total_ns
    assert min(found.dynamo_ns, found.aot_ns, found.inductor_ns, found.code_ns, found.kernels_ns) >= 0
