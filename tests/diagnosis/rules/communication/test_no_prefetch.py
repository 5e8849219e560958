"""communication.no-prefetch: gathers that begin when the layer before has ended fire it;
prefetched and needed ones do not.
"""

from __future__ import annotations

from typing import Final

import pytest
from tests.diagnosis.cases import case_of, found_in
from tests.diagnosis.jobs import message

from whystall.diagnosis.rules.communication import no_prefetch
from whystall.testing import TraceBuilder, trace

GEMM_NS: Final = 500_000
REDUCE_NS: Final = 400_000
NCCL: Final = ("ncclDevKernel_AllGather_RING_LL", "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL")
RCCL: Final = ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",) * 2
OLDER: Final = ("ncclKernel_AllGather_RING_LL_Sum_int8_t", "ncclKernel_ReduceScatter_RING_LL_Sum_half")
FSDP1: Final = ("_allgather_base", "_reduce_scatter_base")
FSDP2: Final = ("all_gather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced")


def layers(
    forward: str,
    backward: str,
    *,
    beside_ns: int = 0,
    count: int = 4,
    kernels: tuple[str, str] = NCCL,
    said: tuple[str, str] = FSDP1,
    api: str = "cuda",
    lasts: int = REDUCE_NS,
) -> TraceBuilder:
    """Eight steps of some layers: G gathers, C computes, S scatters, one after the other.

    What is no C may begin while the C before it still runs.
    """
    built = trace()
    at = 0
    for number in range(8):
        begin, host, runs, free = at, at, at + 20_000, 0
        for what in forward * count + backward * count:
            call = f"{api}LaunchKernel"
            if what == "C":
                built.launch("gemm", at=host, call=call, call_lasts=2_000, runs_at=runs, lasts=GEMM_NS)
                runs += GEMM_NS
            else:
                starts = max(runs - beside_ns, free) if runs > at + 20_000 else runs
                place = "GS".index(what)
                more = message(said[place], 2 << 20)
                built.launch(
                    kernels[place],
                    at=host,
                    call=call,
                    call_lasts=2_000,
                    runs_at=starts,
                    lasts=lasts,
                    stream=20,
                    **more,
                )
                free = starts + lasts
                runs = max(runs, free)
            host += 3_000
        built.runtime(f"{api}DeviceSynchronize", at=host, lasts=runs - host + 2_000)
        at = runs + 10_000
        built.step(number, at=begin, lasts=at - begin)
    return built


@pytest.mark.parametrize(
    ("kernels", "said", "api"),
    [(NCCL, FSDP1, "cuda"), (NCCL, FSDP2, "cuda"), (RCCL, FSDP1, "hip"), (OLDER, FSDP1, "cuda")],
)
def test_parameters_that_are_gathered_late_are_worth_what_compute_could_hide(
    kernels: tuple[str, str], said: tuple[str, str], api: str
) -> None:
    finding = found_in(layers("GC", "GCS", kernels=kernels, said=said, api=api))["communication.no-prefetch"]
    assert finding.evidence[0].value == pytest.approx(7, abs=0.5)  # all but the first of a step
    assert finding.gain is not None
    whole = 8 * GEMM_NS + 12 * REDUCE_NS + 32_000
    # By hand: the first four layers and the fifth hide a gather each (400 of 500 us), the next two a scatter and 100 us
    # of a gather each, the last one a scatter; the first gather and the last scatter have nothing to hide behind.
    hidden = 5 * REDUCE_NS + 2 * GEMM_NS + REDUCE_NS
    assert finding.gain.floor <= whole / (whole - hidden) <= finding.gain.ceiling
    assert finding.gain.expected == pytest.approx(whole / (whole - hidden), rel=0.01)


@pytest.mark.parametrize(
    "built",
    [
        pytest.param(layers("GCS", "GCS"), id="sequence-parallel"),
        pytest.param(layers("GC", "GCS", beside_ns=GEMM_NS), id="prefetched"),
        pytest.param(layers("GC", "GCS", count=2), id="two layers"),
        pytest.param(layers("GC", "GC"), id="inference"),
        pytest.param(layers("C", "CS"), id="no-gathers"),
        pytest.param(layers("GC", "GCS", lasts=8_000), id="short"),
    ],
)
def test_gathers_that_are_needed_then_or_hidden_or_short(built: TraceBuilder) -> None:
    assert "communication.no-prefetch" not in found_in(built)


@pytest.mark.parametrize(("hidden", "late"), [(0.1, 7), (0.4, None)])
def test_a_gather_is_late_if_less_than_a_fifth_of_it_is_hidden(hidden: float, late: int | None) -> None:
    """Traces without event waits do not tell what the compute after such a gather waits for: its gain stays open."""
    case = case_of(layers("GC", "GCS", beside_ns=round(REDUCE_NS * hidden)))
    assert [one.evidence[0].value for one in no_prefetch.in_trace(case)] == ([late] if late else [])
