"""compute.unfused-optimizer: many small kernels fire it, whatever their C++ names; fused ones and few do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest
from tests.diagnosis.cases import case_of, found_in, found_in_runs, line, run
from tests.diagnosis.jobs import A100, Job, is_worth, shaped

from whystall.diagnosis.case import Case
from whystall.diagnosis.rules.compute import unfused_optimizer
from whystall.testing import TraceBuilder, trace

# What torch calls the kernels of an update: lambdas in templates, which the letters "lamb" must not be taken from.
LAMBDA: Final = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::mul_kernel_cuda(at::TensorIteratorBase&)"
    "::{lambda()#1}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul> >(int, float, char*)"
)
HIP: Final = "void at::native::elementwise_kernel_manual_unroll<128, 8, at::native::AddFunctor<float>>(int, float*)"
KERNEL_NS: Final = 4_000
PAUSE_NS: Final = 10_000


def training(kernel: str, count: int, *, lasts: int = KERNEL_NS, stop_ns: int = 0) -> TraceBuilder:
    """Eight steps of one product of 500 us and an optimizer that launches kernels one after the other.

    In the midst of it the host may stop.
    """
    built = trace()
    at = 0
    for number in range(8):
        begin = at
        built.operator("aten::mm", at=at, lasts=20_000)
        built.launch("sm90_xmma_gemm_bf16bf16", at=at + 5_000, call_lasts=5_000, runs_at=at + 12_000, lasts=500_000)
        at += 512_000
        first = at
        for place in range(count):
            at += stop_ns if place == count // 2 else 0
            built.launch(kernel, at=at, call_lasts=5_000, runs_at=at + 6_000, lasts=lasts)
            at += PAUSE_NS
        built.annotation("Optimizer.step#AdamW.step", at=first, lasts=at - first)
        built.runtime("cudaDeviceSynchronize", at=at, lasts=5_000 + lasts)
        at += 10_000 + lasts
        built.step(number, at=begin, lasts=at - begin)
    return built


@pytest.mark.parametrize("kernel", [LAMBDA, HIP, "void at::native::elementwise_kernel<128, 4>(int)"])
def test_many_kernels_of_an_update_are_worth_joining(kernel: str) -> None:
    found = found_in(training(kernel, 120))["compute.unfused-optimizer"]
    assert found.evidence[0].value == 120
    assert found.gain is not None
    update = 120 * PAUSE_NS  # of which a few kernels and a third of the work are left
    whole = 512_000 + update + 14_000
    assert found.gain.floor <= whole / (whole - update * 0.9)
    assert found.gain.expected > 1.3


def test_a_stop_in_an_update_is_no_part_of_it() -> None:
    stop = 3_000_000
    found = found_in(training(LAMBDA, 120, stop_ns=stop))
    update = 120 * PAUSE_NS
    whole = 512_000 + update + stop + 14_000
    optimizer, other = found["compute.unfused-optimizer"], found["host.python"]
    assert optimizer.gain is not None
    assert optimizer.gain.expected <= whole / (whole - update)
    assert other.gain is not None
    assert other.gain.expected >= whole / (whole - stop)


@pytest.mark.parametrize(
    ("kernel", "count"),
    [
        (LAMBDA, 24),  # as many as a small model has
        ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>", 120),
        ("void multi_tensor_apply_kernel<LAMBStage1Functor<float>>", 120),
        ("multi_tensor_lamb_kernel", 120),
    ],
)
def test_few_and_fused_kernels_are_none(kernel: str, count: int) -> None:
    assert not list(unfused_optimizer.on_a_device(case_of(training(kernel, count))))


def test_without_an_optimizer_there_is_none() -> None:
    built = training(LAMBDA, 120)
    built.events = [event for event in built.events if not event["name"].startswith("Optimizer")]
    assert "compute.unfused-optimizer" not in found_in(built)


def on_a_cpu(
    operators: int, *, name: str = "aten::mul_", optimizer: str = "AdamW", closure: bool = False
) -> TraceBuilder:
    """Eight steps of a product of 2 ms and an update by operators of 20 us each, which may hold a backward pass."""
    built = trace()
    for number in range(8):
        at = number * (2_000_000 + operators * 20_000)
        built.step(number, at=at, lasts=2_000_000 + operators * 20_000)
        if not closure:
            built.operator("aten::mm", at=at, lasts=2_000_000)
        begin = at if closure else at + 2_000_000
        built.annotation(
            f"Optimizer.step#{optimizer}.step", at=begin, lasts=at + 2_000_000 + operators * 20_000 - begin
        )
        if closure:
            built.operator("autograd::engine::evaluate_function: MmBackward0", at=at + 10, lasts=1_999_980)
        for place in range(operators):
            built.operator(name, at=at + 2_000_000 + place * 20_000, lasts=20_000)
    return built


def test_many_operators_on_a_cpu_are_worth_what_a_fused_one_leaves() -> None:
    found = found_in(on_a_cpu(100))["compute.unfused-optimizer"]
    assert found.gain is not None
    assert found.gain.floor <= 4 / (4 - 2 * 0.7) <= found.gain.ceiling  # half of 4 ms, of which three tenths are left


def test_what_a_closure_does_is_no_update() -> None:
    """The optimizer's mark holds the backward pass of 2 ms: what a fused form saves is of the other 2 ms."""
    found, plain = (found_in(on_a_cpu(100, closure=c))["compute.unfused-optimizer"] for c in (True, False))
    assert found.attributed_ns_per_step == pytest.approx(plain.attributed_ns_per_step, rel=0.01) == 2_000_000


@pytest.mark.parametrize("optimizer", ["LBFGS", "Muon", "RMSprop", "MyOwn"])
def test_an_optimizer_without_a_fused_form_for_a_cpu_is_no_cause(optimizer: str) -> None:
    assert "compute.unfused-optimizer" not in found_in(on_a_cpu(100, optimizer=optimizer))


@pytest.mark.parametrize(
    ("optimizer", "patch"),
    [
        ("AdamW", "torch.optim.AdamW(..., fused=True)"),
        ("SGD", "torch.optim.SGD(..., fused=True)"),
        ("RMSprop", "torch.optim.RMSprop(..., foreach=True)"),
        ("MyOwn", None),
    ],
)
def test_the_remedy_is_that_of_the_jobs_own_optimizer(optimizer: str, patch: str | None) -> None:
    built = training(LAMBDA, 120)
    for event in built.events:
        event["name"] = event["name"].replace("AdamW", optimizer)
    remedy = found_in(built)["compute.unfused-optimizer"].remedy
    assert remedy is not None
    assert remedy.patch == patch


def test_an_optimizer_that_works_on_one_vector_has_nothing_to_join() -> None:
    built = training(LAMBDA, 120)
    for event in built.events:
        event["name"] = event["name"].replace("AdamW", "LBFGS")
    assert "compute.unfused-optimizer" not in found_in(built)


@pytest.mark.parametrize(("operators", "name"), [(30, "aten::mul_"), (100, "aten::_fused_adamw_")])
def test_few_and_fused_operators_on_a_cpu_are_none(operators: int, name: str) -> None:
    assert "compute.unfused-optimizer" not in found_in(on_a_cpu(operators, name=name))


@pytest.mark.parametrize(
    ("share", "leaf", "fires"),
    [
        (0.3, "torch.optim.adamw:_single_tensor_adamw", True),
        (0.3, "torch.optim.adamw:_fused_adamw", False),
        (0.3, "torch.optim.adagrad:_single_tensor_adagrad", True),
        (0.3, "torch.optim.rmsprop:_single_tensor_rmsprop", False),
        (0.01, "torch.optim.adamw:_single_tensor_adamw", False),
    ],
)
def test_samples_know_the_loop_over_parameters(share: float, leaf: str, *, fires: bool) -> None:
    found = found_in_runs(run(shares={"optimizer": share}, places=[line(share, part="optimizer", leaf=leaf)]))
    assert ("compute.unfused-optimizer" in found) is fires


def test_of_a_short_loop_more_is_left() -> None:
    """Measured: of a loop of 1.0 ms on cold caches 0.52 is left (benchmarks/bench_optimizers.py), of a long one 0.2."""
    leaf = "torch.optim.adam:_single_tensor_adam"

    def saved(mean_ns: int) -> float:
        sampled = run(
            shares={"optimizer": 0.3}, places=[line(0.3, part="optimizer", leaf=leaf)], total_ns=100 * mean_ns
        )
        (found,) = unfused_optimizer.in_samples(Case(runs=(sampled,)))
        return found.saved[1] / 0.3

    assert saved(3_300_000) == pytest.approx(0.48, abs=0.1)
    assert saved(330_000_000) == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize("recorded", [True, False])
def test_the_loop_of_a_base_class_does_not_say_which_optimizer_it_is(*, recorded: bool) -> None:
    """AdamW runs the loop that is named after Adam; a recording says whose step it was."""
    sampled = run(
        shares={"optimizer": 0.3}, places=[line(0.3, part="optimizer", leaf="torch.optim.adam:_single_tensor_adam")]
    )
    case = case_of(on_a_cpu(100), runs=[sampled]) if recorded else Case(runs=(sampled,))
    (found,) = unfused_optimizer.in_samples(case)
    assert found.remedy is not None
    assert found.remedy.patch is not None
    assert ("torch.optim.AdamW(" in found.remedy.patch) is recorded
    assert "torch.optim.Adam(" not in found.remedy.patch


@pytest.mark.parametrize(
    ("inside", "told"),
    [
        pytest.param({}, ["Adagrad", "AdamW"], id="both in loops"),
        pytest.param({"Adagrad": "aten::coalesce"}, ["AdamW"], id="sparse gradients"),
        pytest.param({"AdamW": "aten::_fused_adamw_"}, ["Adagrad"], id="one is fused"),
        pytest.param({"AdamW": "aten::_fused_rms_norm"}, ["Adagrad", "AdamW"], id="a model's own"),
        pytest.param({"Adagrad": "aten::coalesce", "AdamW": "aten::_fused_adamw_"}, [], id="nothing to join"),
    ],
)
def test_of_several_optimizers_those_are_told_that_could_be_fused(inside: dict[str, str], told: list[str]) -> None:
    """No fused form takes sparse gradients: torch refuses it at the first step."""
    built, places = trace(), []
    for step in range(8):
        built.step(step, at=step * 10_000_000, lasts=10_000_000)
        for place, name in enumerate(("Adagrad", "AdamW")):
            at = step * 10_000_000 + 4_000_000 + place * 3_000_000
            built.annotation(f"Optimizer.step#{name}.step", at=at, lasts=2_000_000)
            built.operator(inside.get(name, "aten::add_"), at=at, lasts=1_000_000)
    for place, name in enumerate(("adagrad", "adamw")):
        leaf = f"torch.optim.{name}:_single_tensor_{name}"
        places.append(line(0.2, "o.step()", part="optimizer", leaf=leaf, at=9 + place))
    case = case_of(built, runs=[run(shares={"optimizer": 0.4}, places=places)])
    found = list(unfused_optimizer.in_samples(case))
    assert [one.remedy is not None for one in found] == [True] * bool(told)
    for one in found:
        assert one.remedy is not None
        assert [name for name in ("Adagrad", "AdamW") if f"optim.{name}(" in (one.remedy.patch or "")] == told
        assert one.saved[1] <= 0.2 * len(told)


@pytest.mark.parametrize(("name", "fires"), [("aten::mul", True), ("aten::mm", False)])
def test_of_an_optimizer_that_torch_does_not_know_one_pass_is_left(name: str, *, fires: bool) -> None:
    """Of 64 operators that read one tensor of a parameter's size and write another, seven passes are left."""
    built = trace()
    size = [512, 512]
    for number in range(8):
        at = number * 4_000_000
        built.step(number, at=at, lasts=4_000_000)
        built.operator("aten::mm", at=at, lasts=1_000_000)
        built.operator("torch::autograd::AccumulateGrad", at=at + 1_000_000, lasts=80_000, **shaped(size))
        begin = at + 1_080_000
        built.annotation("Optimizer.step#MyOwn.step", at=begin, lasts=64 * 40_000)
        for place in range(64):
            built.operator(name, at=begin + place * 40_000, lasts=40_000, **shaped(size, size))
    found = found_in(built)
    assert ("compute.unfused-optimizer" in found) is fires
    if fires:
        update = 64 * 40_000
        is_worth(found["compute.unfused-optimizer"], 4_000_000 / (4_000_000 - update * (1 - 7 / (64 * 3))))


WEIGHT: Final = [512, 1024]
PASS_NS: Final = 2_000_000


def averaged(
    *beside: tuple[str, list[int]], weights: int = 4, within: str = "", biases: Sequence[int] = ()
) -> TraceBuilder:
    """Eight steps of a product, a gradient for each weight, a fused optimizer, and what is done to each weight.

    With biases of these lengths, one for each weight.
    """
    built = trace()
    at = 0

    def run(name: str, lasts: int, *sizes: list[int], **more: int) -> None:
        nonlocal at
        built.operator(name, at=at, lasts=lasts, **(shaped(*sizes) if sizes else {}), **more)
        at += lasts + 1_000

    for number in range(8):
        begin = at
        run("aten::mm", 20_000_000, [64, 1024], [1024, 512], **{"Sequence number": number, "Fwd thread id": 0})
        for _ in range(weights):
            run("torch::autograd::AccumulateGrad", 50_000, WEIGHT)
        for length in biases:
            run("torch::autograd::AccumulateGrad", 10_000, [length])
        first = at
        run("aten::_fused_adamw_", 3_000_000)
        built.annotation("Optimizer.step#AdamW.step", at=first, lasts=at - first)
        for _ in range(weights):
            for name, size in beside:
                if within:
                    built.operator(within, at=at, lasts=PASS_NS + 500)
                run(name, PASS_NS, size, size)
        built.step(number, at=begin, lasts=at - begin)
    return built


AVERAGE: Final = [("aten::clone", WEIGHT), ("aten::mul", WEIGHT), ("aten::add", WEIGHT), ("aten::copy_", WEIGHT)]


def test_an_average_kept_by_hand_is_worth_all_but_one_pass() -> None:
    """32 ms of each step, of which 4 weights of 2 MiB, gone over three times at 10 GB/s, take 2.5 ms."""
    finding = found_in(averaged(*AVERAGE))["compute.unfused-optimizer"]
    rest = 20_000_000 + 4 * 50_000 + 3_000_000
    once = 4 * 512 * 1024 * 4 * 3 / 10
    assert finding.evidence[1].value == pytest.approx(10 / 3, rel=0.2)  # clone 2, mul 2 or 3, add 3, copy_ 2 or 3
    is_worth(finding, (rest + 16 * PASS_NS) / (rest + once))
    assert finding.remedy is not None
    assert "_foreach_lerp_" in (finding.remedy.patch or "")


def test_an_average_goes_through_biases_as_well() -> None:
    lengths = range(512, 516)
    both = [*AVERAGE, *(("aten::lerp", [length]) for length in lengths)]
    assert "compute.unfused-optimizer" in found_in(averaged(*both, biases=lengths))


@pytest.mark.parametrize(
    "built",
    [
        pytest.param(averaged(), id="nothing beside the optimizer"),
        pytest.param(averaged(*((name, [64, 1024]) for name, _ in AVERAGE)), id="sizes of activations"),
        pytest.param(averaged(("aten::clamp_", WEIGHT)), id="one pass, as where weights are kept within bounds"),
        pytest.param(averaged(("aten::mm", WEIGHT)), id="products, as of an optimizer by hand"),
        pytest.param(averaged(*AVERAGE, biases=range(512, 516)), id="activations that are as large as the weights"),
    ],
)
def test_other_work_beside_the_optimizer_is_none(built: TraceBuilder) -> None:
    assert "compute.unfused-optimizer" not in found_in(built)


def test_what_a_reducer_does_with_gradients_is_no_average() -> None:
    """It copies each bucket to the gradients after the backward pass, under a name of its own."""
    within = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
    assert "compute.unfused-optimizer" not in found_in(averaged(*AVERAGE, within=within))


def test_an_optimizer_beside_another_one_is_worth_its_own_part() -> None:
    """Two thirds of the optimizers' time are in one that multiplies matrices, and a third in Adam's loop."""
    adam = line(0.2, "adam.step()", part="optimizer", leaf="torch.optim.adam:_single_tensor_adam", at=9)
    other = line(0.4, "muon.step()", part="optimizer", leaf="__main__:orthogonal", at=8)
    alone, beside = (
        found_in_runs(run(shares={"optimizer": share}, places=places))["compute.unfused-optimizer"].gain
        for share, places in ((0.2, [adam]), (0.6, [adam, other]))
    )
    assert alone is not None
    assert beside is not None
    assert beside.expected == pytest.approx(alone.expected, rel=0.01)


LISTS = ("lerp_", "mul_", "addcmul_", "sqrt", "div_", "add_", "addcdiv_")
TENSORS = {"lerp_": 3, "addcmul_": 3, "addcdiv_": 4}  # two otherwise: read and written


def over_lists(name: str, *, groups: int = 1, of_lists: tuple[str, ...] = LISTS) -> Job:
    """Eight steps of 10 ms and of an optimizer whose operations take 1 ms for each tensor that they read or write."""
    job = Job(A100)
    for _ in job.steps(8):
        job.operator("aten::mm", "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_nn", 10_000_000)
        begin = job.at
        for _ in range(groups):
            for one in of_lists:
                takes_ns = TENSORS.get(one, 2) * 1_000_000 // groups
                kernel = f"void at::native::(anonymous namespace)::multi_tensor_apply_kernel<{one}>"
                job.operator(f"aten::_foreach_{one}", kernel, takes_ns)
        job.built.annotation(f"Optimizer.step#{name}.step", at=begin, lasts=job.at - begin)
        job.wait()
    return job


@pytest.mark.parametrize(("name", "groups"), [("AdamW", 1), ("Adam", 3)])
def test_adam_over_lists_reads_and_writes_its_states_many_times(name: str, groups: int) -> None:
    """Eighteen passes, seven of a fused step."""
    job = over_lists(name, groups=groups)
    finding = found_in(job.built)["compute.unfused-optimizer"]
    is_worth(finding, job.step_ns / (job.step_ns - 11_000_000), within=0.03)
    assert f"torch.optim.{name}(..., fused=True)" in str(finding.remedy)


@pytest.mark.parametrize("job", [over_lists("Mine"), over_lists("AdamW", of_lists=("mul_", "addcdiv_"))])
def test_other_steps_over_lists_are_left(job: Job) -> None:
    assert "compute.unfused-optimizer" not in found_in(job.built)
