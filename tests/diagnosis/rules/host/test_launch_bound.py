"""host.launch-bound: many kernels that are shorter than their launches fire it; long ones and graphs do not."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Final

import pytest
from tests.diagnosis.cases import case_of, found_in
from tests.diagnosis.jobs import GAP_NS, Job, is_worth

from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.rules import RULES
from whystall.diagnosis.rules.host import launch_bound
from whystall.testing import TraceBuilder, trace

KERNELS: Final = 200
OPERATOR_NS: Final = 10_000
ATEN: Final = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"


def small(
    lasts: int, *, every: int = OPERATOR_NS, api: str = "cuda", kernel: str = ATEN, call: str = "LaunchKernel"
) -> Job:
    """Eight steps of 200 operators of 10 us, each with a kernel, and a wait."""
    job = Job(api=api)
    for _ in job.steps(8):
        for number in range(KERNELS):
            begin = job.at
            job.built.operator(f"aten::special_{number % 40}", at=begin, lasts=every)
            job.python(2_000)
            job.launch(kernel, lasts, call=call)
            job.at = begin + every
        job.wait()
    return job


@pytest.mark.parametrize(
    ("api", "call", "kernel"),
    [
        ("cuda", "LaunchKernel", ATEN),
        ("cuda", "LaunchKernelExC", "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<int>>"),
        ("cu", "LaunchKernel", "triton_poi_fused_add_0"),
        ("hip", "LaunchKernel", "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64ELi8ELb0ELb0ELb1ELi1EEEv"),
        ("hip", "ExtModuleLaunchKernel", "Cijk_Alik_Bljk_BBS_BH_MT16x32x512_MI16x16x1_SN"),
    ],
)
def test_many_small_kernels_are_worth_what_a_graph_leaves(api: str, call: str, kernel: str) -> None:
    """A graph leaves the kernels and 1 us between them (reference: causes.md)."""
    job = small(3_000, api=api, kernel=kernel, call=call)
    finding = found_in(job.built)["host.launch-bound"]
    is_worth(finding, job.step_ns / (KERNELS * (3_000 + GAP_NS) + 10_000), within=0.1)
    assert finding.severity == "critical"


@pytest.mark.parametrize("lasts", [9_900, 40_000])
def test_kernels_that_are_as_long_as_their_launches_keep_the_device_busy(lasts: int) -> None:
    assert "host.launch-bound" not in found_in(small(lasts).built)


@pytest.mark.parametrize(("lasts", "every", "fires"), [(30_000, 60_000, True), (30_000, 20_000, False)])
def test_kernels_are_small_against_what_the_host_takes_for_each(lasts: int, every: int, *, fires: bool) -> None:
    """A slow host (Python stacks, hooks of wrappers) is late with longer kernels as well, and a graph helps as much."""
    assert ("host.launch-bound" in found_in(small(lasts, every=every).built)) is fires


def test_long_kernels_after_a_long_pause_are_held_up_by_the_pause() -> None:
    job = Job()
    for _ in job.steps(8):
        job.python(3_000_000)
        for _ in range(20):
            job.operator("aten::mm", "ampere_sgemm_128x128_nn", 100_000)
        job.wait()
    found = found_in(job.built)
    assert "host.python" in found
    assert "host.launch-bound" not in found


def test_a_graph_of_small_kernels_is_launched_at_once() -> None:
    job = Job()
    for number in job.steps(8):
        at = job.at
        job.built.runtime("cudaGraphLaunch", at=at, lasts=20_000, correlation=10_000 + number)
        for place in range(KERNELS):
            runs = at + 25_000 + place * (3_000 + GAP_NS)
            job.built.kernel(ATEN, at=runs, lasts=3_000, correlation=10_000 + number)
        job.at += 20_000
        job.busy_until[7] = at + 25_000 + KERNELS * (3_000 + GAP_NS)
        job.wait()
    assert "host.launch-bound" not in found_in(job.built)


def slow_calls(call_ns: int) -> Job:
    """Eight steps of a hundred operators, whose launch calls take so long, and ten stretches of Python of 100 us."""
    job = Job()
    for _ in job.steps(8):
        for place in range(100):
            begin = job.at
            job.built.launch(ATEN, at=begin + 2_000, call_lasts=call_ns, runs_at=begin + call_ns + 4_000, lasts=8_000)
            job.at = begin + call_ns + 6_000
            job.built.operator(f"aten::special_{place % 40}", at=begin, lasts=call_ns + 5_000)
            for record in range(2):  # as DDP makes them: no launches, and short whatever happens
                job.built.runtime("cudaEventRecord", at=begin + 200 + 500 * record, lasts=300)
            if place % 10 == 0:
                job.python(100_000)
        job.wait()
    return job


def test_launch_calls_that_are_slow_themselves_come_first() -> None:
    """At 60 us each they are most of what the host does; at 5 us they are not, and Python comes first."""
    assert next(iter(found_in(slow_calls(60_000).built))) == "host.launch-bound"
    assert next(iter(found_in(slow_calls(5_000).built))) == "host.python"
    told = {one.what for one in found_in(slow_calls(60_000).built)["host.launch-bound"].evidence}
    assert "a launch call itself, in the median" in told


def replays(gap_ns: int, *, graph: bool) -> TraceBuilder:
    """Steps of 100 kernels of 3 us with gaps: launched by one graph, or one by one as the host comes to it."""
    built, at = trace(), 0
    for number in range(10):
        begin = at
        correlation = 70_000 + number
        if graph:
            built.runtime("cudaGraphLaunch", at=at, lasts=9_000, correlation=correlation)
            at += 12_000
        for _ in range(100):
            if graph:
                built.kernel("gemm", at=at, lasts=3_000, correlation=correlation)
            else:
                built.launch("gemm", at=at - 6_000, call_lasts=4_000, runs_at=at, lasts=3_000)
            at += 3_000 + gap_ns
        built.runtime("cudaStreamSynchronize", at=begin + 10_000 if graph else at, lasts=max(at - begin - 8_000, 2_000))
        at += 6_000
        built.step(number, at=begin, lasts=at - begin - 100)
    return built


def test_gaps_within_a_graph_are_no_late_launches() -> None:
    """The kernels are in one graph already: what lies between them is the device's, or the profiler's."""
    assert "host.launch-bound" not in found_in(replays(9_000, graph=True))


def test_the_same_gaps_between_launches_are() -> None:
    assert "host.launch-bound" in found_in(replays(9_000, graph=False))


def looped(*names: str, kernel: str = ATEN, backward: bool = False, rounds: int = 60) -> Job:
    """Eight steps of rounds that call the same operators in turn, as slow as their calls."""
    job = Job()
    more = {"Fwd thread id": 1} if backward else {}
    for _ in job.steps(8):
        for _ in range(rounds):
            for name in names:
                job.operator(name, kernel, 3_000, **more)
        job.operator("aten::mm", "ampere_sgemm_128x128_nn", 3_000)
    return job


@pytest.mark.parametrize(
    ("job", "kind"),
    [
        (looped("aten::mul_", "aten::add_"), "looped"),
        (looped("aten::copy_", kernel="Memcpy DtoD (Device -> Device)"), "looped"),
        (looped("aten::mul", "aten::add"), None),
        (looped("aten::mul_", "aten::add_", backward=True), None),
        (looped("aten::mul_", "aten::add_", rounds=12), None),
        (looped("aten::mul_", "aten::add", "aten::sub", "aten::div", "aten::exp"), None),
        (looped("aten::relu_", "aten::mm", kernel="ampere_sgemm_128x128_nn"), None),
    ],
)
def test_a_loop_over_tensors_has_a_remedy_of_its_own(job: Job, kind: str | None) -> None:
    """Tensors are changed in place, a few calls for each; chains, backward passes and layers are no such loops."""
    finding = found_in(job.built)["host.launch-bound"]
    assert (finding.remedy == launch_bound.CAUSE.remedies["looped"]) is (kind == "looped")


@pytest.mark.parametrize(("every", "graphs"), [(0, True), (200, True), (80, False), (20, False)])
def test_a_graph_is_no_advice_where_the_host_waits_between_the_launches(every: int, *, graphs: bool) -> None:
    """One wait a step leaves a graph of the rest; many leave none of half a step."""
    job = Job()
    for _ in job.steps(8):
        for number in range(KERNELS):
            job.operator(f"aten::special_{number % 40}", ATEN, 3_000)
            if every and number % every == every - 1:
                with job.inside("aten::item"):
                    job.call("StreamSynchronize", 3_000)
    case = case_of(job.built)
    told = diagnose(case, RULES).findings
    [finding] = [one for one in told if one.id == "host.launch-bound" and one.remedy is not None]
    assert finding.remedy is not None
    assert ("graph" in finding.remedy.text.split(":")[0]) is False or graphs
    assert (finding.remedy == launch_bound.CAUSE.remedies["when_waits"]) is (not graphs)


def test_the_lines_are_those_that_launch_while_the_device_idles() -> None:
    job = Job()
    for _ in job.steps(8):
        for line, count, lasts in ((5, 30, 20_000), (9, 100, 2_000)):
            since = job.at
            for _ in range(count):
                job.operator("aten::add", ATEN, lasts)
                job.python(10_000)  # so that the usual cost of recording explains little of it
            job.built.python(f"model.py({line}): forward", at=since - 10, lasts=job.at - since + 10)
    finding = found_in(job.built)["host.launch-bound"]
    assert (finding.code[0].file, finding.code[0].line) == ("model.py", 9)


def strewn(python_ns: int, *, every: int = 1, named: str = "", pieces: bool = False) -> Job:
    """Eight steps of 200 kernels of 5 us; before each, or before each ``every``-th, Python that no event shows."""
    job = Job()
    for _ in job.steps(8):
        with job.marked(named) if named else nullcontext():
            for number in range(KERNELS):
                if number % every == 0:
                    job.python(python_ns)
                with job.inside("Torch-Compiled Region: 3/0") if pieces else nullcontext():
                    job.operator(f"aten::special_{number % 40}", ATEN, 5_000)
        job.wait()
    return job


def test_python_between_all_launches_is_a_part_of_launching() -> None:
    """A graph leaves none of it: no other cause is named beside."""
    job = strewn(100_000)
    found = found_in(job.built)
    is_worth(found["host.launch-bound"], job.step_ns / (KERNELS * (5_000 + GAP_NS) + 10_000), within=0.1)
    assert "host.python" not in found


@pytest.mark.parametrize("job", [strewn(400_000, every=20), strewn(100_000, named="postprocess")])
def test_few_stretches_of_python_or_named_ones_are_work_of_its_own(job: Job) -> None:
    assert "host.python" in found_in(job.built)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("MatMul8bitLt", True),
        ("mylib::rope", True),
        ("CompiledFunction", False),
        ("aten::layer_norm", False),
        ("RopeBackward", False),
    ],
)
def test_an_operator_that_is_composed_of_small_ones_is_named(name: str, *, named: bool) -> None:
    """A library's operator launches ten kernels in each of twenty calls, and the model a few more between them."""
    job = Job()
    for _ in job.steps(8):
        for call in range(20):
            with job.inside(name):
                for number in range(10):
                    job.operator(f"aten::special_{(7 * call + number) % 40}", ATEN, 2_000)
            job.operator("aten::mm", "ampere_sgemm_128x128_nn", 3_000)
        job.wait()
    found = found_in(job.built)["host.launch-bound"]
    assert found.title.endswith(f": {name} launches most of them") == named
    assert ("fused implementation" in str(found.remedy)) == named


def test_python_is_not_lost_where_the_usual_kernel_is_long() -> None:
    """The host takes 14.5 ms, 58 us for each event, and the usual kernel takes 80: no rule on launches names it."""
    job = Job()
    for _ in job.steps(8):
        for number in range(120):
            job.python(100_000)
            job.operator(f"aten::special_{number % 40}", ATEN, 5_000)
        for _ in range(130):
            job.operator("aten::mm", "ampere_sgemm_128x128_nn", 80_000)
    found = found_in(job.built)
    assert "host.python" in found
    assert "host.launch-bound" not in found


@pytest.mark.parametrize("pieces", [False, True])
def test_a_model_that_is_compiled_in_pieces_needs_no_compiler_but_fewer_breaks(*, pieces: bool) -> None:
    remedy = found_in(strewn(100_000, pieces=pieces).built)["host.launch-bound"].remedy
    assert remedy is not None
    assert ("fullgraph=True" in (remedy.patch or "")) is pieces
