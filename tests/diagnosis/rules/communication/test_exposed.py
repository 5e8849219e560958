"""communication.exposed: collectives that the step waits for fire it, by any library's names;
hidden and short ones do not.
"""

from __future__ import annotations

from typing import Final

import pytest
from tests.diagnosis.cases import found_in, told_of
from tests.diagnosis.jobs import GAP_NS, Job, is_worth, meet, message, shaped, together

from whystall.diagnosis.finding import Finding
from whystall.testing import trace

COMPUTE_NS: Final = 1_000_000
REDUCE_NS: Final = 800_000
SIZE: Final = 200 << 20
NCCL: Final = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def training(
    kernel: str = NCCL, lasts: int = REDUCE_NS, *, api: str = "cuda", recorded: bool = True, hidden: bool = False
) -> Job:
    """Eight steps of four products, each with a collective that follows it, or that runs beside it."""
    job = Job(api=api)
    more = message("allreduce", SIZE) if recorded else {}
    for _ in job.steps(8):
        for _ in range(4):
            job.launch("gemm", COMPUTE_NS)
            job.launch(kernel, lasts, stream=20 if hidden else 7, **more)
        job.wait()
    return job


@pytest.mark.parametrize(
    ("kernel", "api", "recorded"),
    [
        (NCCL, "cuda", True),
        (NCCL, "hip", True),  # RCCL has NCCL's names
        ("ncclKernel_AllReduce_RING_LL_Sum_half(ncclWorkElem)", "cuda", False),  # of older versions, without records
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "hip", True),
        ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)", "cuda", False),
        ("void (anonymous namespace)::two_shot_all_reduce_kernel<c10::BFloat16>(void**)", "cuda", False),
    ],
)
def test_collectives_in_the_way_are_worth_all_but_the_last_bucket(kernel: str, api: str, recorded: bool) -> None:
    """The last 25 MiB of a step have nothing left to hide behind, or the last collective where no size is known."""
    job = training(kernel, api=api, recorded=recorded)
    finding = found_in(job.built)["communication.exposed"]
    last = REDUCE_NS * (25 << 20) // SIZE if recorded else REDUCE_NS
    is_worth(finding, job.step_ns / (job.step_ns - 3 * (REDUCE_NS + GAP_NS) - (REDUCE_NS - last)))
    assert finding.gain is not None
    assert finding.gain.ceiling >= 0.99 * job.step_ns / (job.step_ns - 4 * REDUCE_NS)
    assert finding.missing_signals == ["traces of the other ranks"]


def four_ranks(late: int) -> list[Job]:
    """Steps of a product and a reduction on four ranks, of which one computes for longer."""
    jobs = [Job() for _ in range(4)]
    record = message("allreduce", SIZE, ranks=(0, 1, 2, 3))
    for _ in together(jobs, 12):
        for rank, job in enumerate(jobs):
            job.launch("gemm", COMPUTE_NS + (2 * COMPUTE_NS if rank == late else 0))
        meet(jobs, NCCL, REDUCE_NS, **record)
        for job in jobs:
            job.wait()
    return jobs


def test_exchanges_that_are_needed_at_once_are_not_to_be_left_alone() -> None:
    """Two exchanges of 0.8 ms among four products of 1 ms: nothing hides them, and overlap could not."""
    jobs = [Job(), Job()]
    for _ in together(jobs, 12):
        for _ in range(2):
            for job in jobs:
                job.launch("gemm", COMPUTE_NS)
                job.launch("gemm", COMPUTE_NS)
            meet(
                jobs,
                "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
                REDUCE_NS,
                **message("all_to_allv", SIZE),
            )
        for job in jobs:
            job.wait()
    told = told_of(*(job.built for job in jobs))["communication.exposed"]
    assert told.severity == "info"
    assert "leave it" not in told.title
    assert "needed at once" in told.title


def test_exchanges_that_wait_for_whoever_comes_last_are_no_matter_of_the_link() -> None:
    """Of two ranks one, in turn, computes 3 ms longer before each of two exchanges of 0.4 ms."""
    jobs = [Job(), Job()]
    for number in together(jobs, 12):
        for _ in range(2):
            for rank, job in enumerate(jobs):
                job.launch("gemm", COMPUTE_NS + (3 * COMPUTE_NS if number % 2 == rank else 0))
            meet(
                jobs,
                "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
                REDUCE_NS // 2,
                **message("all_to_allv", SIZE, ranks=(0, 1)),
            )
        for job in jobs:
            job.wait()
    told = told_of(*(job.built for job in jobs))["communication.exposed"]
    assert "waiting for ranks that come later" in told.title
    assert "faster link shortens it" not in told.title


def test_where_a_rank_was_not_recorded_it_may_be_the_one_that_is_late() -> None:
    """The guilty rank is missing, and another one: the waits are there, and nobody can be blamed for them."""
    of_three = [job.built for rank, job in enumerate(four_ranks(late=2)) if rank != 2]
    found = found_in(*of_three)
    assert "communication.straggler" not in found
    assert found["communication.exposed"].could_be == ["communication.straggler"]
    assert found["communication.exposed"].missing_signals == ["traces of the other ranks"]


def test_of_a_job_that_was_recorded_whole_no_rank_is_missing() -> None:
    told = told_of(*(job.built for job in four_ranks(late=-1)))["communication.exposed"]
    assert told.missing_signals == []
    assert told.could_be == []


@pytest.mark.parametrize(("size", "worth"), [(SIZE, 5 / 4.125), (25 << 20, None)])
def test_gradients_in_one_message_could_be_cut_into_buckets(size: int, worth: float | None) -> None:
    """Of 5 ms one is an all-reduce at the end: of 200 MiB an eighth is left, of one bucket all of it."""
    job = Job()
    for _ in job.steps(8):
        job.launch("gemm", 4 * COMPUTE_NS)
        job.launch(NCCL, COMPUTE_NS, **message("allreduce", size))
        job.wait()
    found = found_in(job.built)
    assert ("communication.exposed" in found) is (worth is not None)
    if worth is not None:
        is_worth(found["communication.exposed"], worth, within=0.03)


def test_collectives_behind_compute_are_told_and_left() -> None:
    told = told_of(training(hidden=True).built)["communication.exposed"]
    assert told.severity == "info"
    assert "leave it" in told.title


@pytest.mark.parametrize("kernel", ["gemm", "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>"])
def test_compute_is_no_collective(kernel: str) -> None:
    assert "communication.exposed" not in told_of(training(kernel, recorded=False).built)


def test_short_collectives_are_none() -> None:
    assert "communication.exposed" not in found_in(training(lasts=15_000).built)


def test_what_experts_exchange_is_needed_at_once() -> None:
    """Nothing could run meanwhile: it bounds the gain, and is no part of what is expected."""
    job = Job()
    for _ in job.steps(8):
        for _ in range(4):
            job.launch("gemm", COMPUTE_NS)
            job.launch("void deep_ep::internode::dispatch<false, 4, true>(int4*)", REDUCE_NS)
        job.wait()
    assert "communication.exposed" not in found_in(job.built)


@pytest.mark.parametrize("library", ["gloo", "mpi"])
def test_on_a_cpu_the_library_says_what_it_does(library: str) -> None:
    built = trace()
    for number in range(8):
        at = number * 4_000_000
        built.step(number, at=at, lasts=4_000_000)
        for part in range(2):
            begin = at + part * 2_000_000
            built.operator("aten::mm", at=begin, lasts=1_000_000)
            built.annotation(f"{library}:all_reduce", at=begin + 1_000_000, lasts=1_000_000)
    found = found_in(built)["communication.exposed"]
    assert found.gain is not None
    assert found.gain.floor <= 4 / 3 <= found.gain.ceiling  # without the first of two


@pytest.mark.parametrize("reduces", [True, False])
def test_the_remedy_of_a_sharded_job_is_that_of_what_holds_it_up(*, reduces: bool) -> None:
    """Reductions on the stream of compute, and gathers beside it; or the other way round."""
    gather = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    reduce = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    job = Job()
    for _ in job.steps(8):
        with job.inside("FSDP::post_backward_reduce"):
            for _ in range(4):
                job.launch("gemm", COMPUTE_NS)
                job.launch(gather, REDUCE_NS, stream=20 if reduces else 7, **message("_allgather_base", SIZE))
                job.launch(reduce, REDUCE_NS, stream=7 if reduces else 20, **message("_reduce_scatter_base", SIZE))
        job.wait()
    finding = found_in(job.built)["communication.exposed"]
    assert finding.evidence[-1].value == ("reduce_scatter" if reduces else "all_gather")
    assert finding.remedy is not None
    assert ("reduce gradients" in finding.remedy.text.lower() or "reduced beside" in finding.remedy.text) is reduces


LAYERS: Final = 12
WIDTH, INNER, VOCABULARY, ROWS = 2_048, 8_192, 16_000, 4_096
OF_LAYER: Final = 2 * WIDTH * INNER
OF_ROOT: Final = 2 * VOCABULARY * WIDTH
GATHER: Final = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SCATTER: Final = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
FSDP1: Final = ("_allgather_base", "_reduce_scatter_base")
FSDP2: Final = ("all_gather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced")


class Sharded:
    """Steps of a model with layers between an embedding and a head; a unit of its sharded parameters holds layers."""

    def __init__(self, said: tuple[str, str], ps_per_element: float, *, sizes: bool = True) -> None:
        self.job = Job()
        self.said, self.sizes = said, sizes
        self.ps_per_element = ps_per_element

    def sends(self, scatters: bool, elements: int) -> int:
        """Launches a gather, or a scatter that waits for the compute so far, and returns when it ends."""
        job = self.job
        if scatters:
            job.busy_until[20] = max(job.busy_until.get(20, 0), job.busy_until.get(7, 0))
        lasts = int(elements * self.ps_per_element / 1_000)
        record = message(self.said[scatters], 2 * elements, ranks=(0, 1, 2, 3))
        job.launch(SCATTER if scatters else GATHER, lasts, stream=20, **record)
        return job.busy_until[20]

    def after(self, end: int) -> None:
        """Makes the next compute wait for the end of a transfer."""
        self.job.busy_until[7] = max(self.job.busy_until.get(7, 0), end)

    def product(self, inner: int, columns: int, lasts: int) -> None:
        more = shaped([ROWS, inner], [inner, columns]) if self.sizes else {}
        self.job.operator("aten::mm", "gemm", lasts, **more)

    def forward(self, at: int) -> None:
        """The forward pass of a layer, of the embedding before the layers (-1), or of the head after them."""
        if at < 0:
            self.job.operator("aten::embedding", "rows", 20_000, **shaped([VOCABULARY, WIDTH], [ROWS]))
        elif at == LAYERS:
            self.product(WIDTH, VOCABULARY, COMPUTE_NS // 2)
        else:
            self.product(WIDTH, INNER, COMPUTE_NS)
            self.product(INNER, WIDTH, COMPUTE_NS)

    def backward(self, products: int) -> None:
        more = {"Fwd thread id": 1, "Sequence number": 1}
        for _ in range(products):
            with self.job.inside("autograd::engine::evaluate_function: MmBackward0", **more):
                self.job.operator("aten::mm", "gemm", 2 * COMPUTE_NS)

    def optimizer(self) -> None:
        with self.job.marked("Optimizer.step#AdamW.step"):
            self.job.operator("aten::_fused_adamw_", "adam", COMPUTE_NS // 2)


def sharded(per_unit: int, said: tuple[str, str] = FSDP1, ps_per_element: float = 15.0, *, sizes: bool = True) -> Job:
    """Eight steps; a unit is gathered before the previous one computes, and the first also holds the root's weights."""
    made = Sharded(said, ps_per_element, sizes=sizes)
    units = [range(at, min(at + per_unit, LAYERS)) for at in range(0, LAYERS, per_unit)]
    size = [OF_LAYER * len(unit) + (OF_ROOT if at == 0 else 0) for at, unit in enumerate(units)]
    for _ in made.job.steps(8):
        came = [made.sends(False, size[0])]
        for at, unit in enumerate(units):
            if at + 1 < len(units):
                came.append(made.sends(False, size[at + 1]))
            made.after(came[at])
            if at == 0:
                made.forward(-1)
            for layer in unit:
                made.forward(layer)
        made.forward(LAYERS)
        made.backward(1)
        again = {}
        for at in range(len(units) - 1, -1, -1):
            for needed in (at, at - 1):
                if 0 <= needed < len(units) - 1 and len(units) > 1 and needed not in again:
                    again[needed] = made.sends(False, size[needed] - (OF_ROOT if needed == 0 else 0))
            made.after(again.get(at, 0))
            made.backward(2 * len(units[at]))
            last = made.sends(True, size[at])
        made.after(last)
        made.optimizer()
        made.job.wait()
    return made.job


def is_to_be_split(finding: Finding) -> bool:
    return finding.remedy is not None and "each layer" in finding.remedy.text


@pytest.mark.parametrize(
    ("said", "ps_per_element"),
    [(FSDP1, 15.0), (FSDP2, 15.0), (FSDP1, 6.0), (FSDP1, 60.0)],  # the last one takes longer than compute
)
def test_a_model_in_one_unit_is_worth_what_units_of_a_layer_hide(said: tuple[str, str], ps_per_element: float) -> None:
    whole, layered = (sharded(layers, said, ps_per_element) for layers in (LAYERS, 1))
    finding = found_in(whole.built)["communication.exposed"]
    is_worth(finding, whole.step_ns / layered.step_ns)
    assert is_to_be_split(finding)
    assert {one.what: one.value for one in finding.evidence}["layers that could be units"] == LAYERS


def test_two_units_are_hardly_better_than_one() -> None:
    whole, layered = sharded(LAYERS // 2), sharded(1)
    finding = found_in(whole.built)["communication.exposed"]
    is_worth(finding, whole.step_ns / layered.step_ns, within=0.1)
    assert is_to_be_split(finding)


def test_without_sizes_a_share_of_the_parameters_is_taken_to_be_needed_first() -> None:
    whole = sharded(LAYERS, sizes=False)
    finding = found_in(whole.built)["communication.exposed"]
    is_worth(finding, whole.step_ns / sharded(1).step_ns, within=0.1)
    assert is_to_be_split(finding)


@pytest.mark.parametrize("per_unit", [1, 2])
def test_units_of_a_layer_are_as_they_should_be(per_unit: int) -> None:
    finding = found_in(sharded(per_unit).built).get("communication.exposed")
    assert finding is None or not is_to_be_split(finding)


def test_a_large_embedding_is_no_unit_of_the_whole_model() -> None:
    """ZeRO-3 on demand: of the bytes that are gathered a third is the layers', in small messages."""
    made, embedding = Sharded(FSDP1, 15.0), 24 * OF_LAYER
    for _ in made.job.steps(8):
        made.after(made.sends(False, embedding))
        made.forward(-1)
        for layer in range(LAYERS):
            made.after(made.sends(False, OF_LAYER))
            made.forward(layer)
        made.forward(LAYERS)
        made.backward(2 * LAYERS + 1)
        for _ in range(LAYERS):
            made.sends(True, OF_LAYER)
        made.after(made.sends(True, embedding))
        made.optimizer()
        made.job.wait()
    assert not is_to_be_split(found_in(made.job.built)["communication.exposed"])


def test_an_optimizer_that_gathers_what_it_stepped_shards_no_parameters() -> None:
    """ZeRO-1: gradients are scattered after the backward pass, and parameters gathered after the optimizer's step."""
    made = Sharded(FSDP1, 15.0)
    whole = OF_ROOT + LAYERS * OF_LAYER
    for _ in made.job.steps(8):
        for layer in range(-1, LAYERS + 1):
            made.forward(layer)
        made.backward(2 * LAYERS + 1)
        made.after(made.sends(True, whole))
        made.optimizer()
        made.after(made.sends(False, whole))
        made.job.wait()
    assert not is_to_be_split(found_in(made.job.built)["communication.exposed"])


def test_gradients_that_are_scattered_amid_the_backward_pass_are_not_of_one_unit() -> None:
    made = Sharded(FSDP1, 15.0)
    for _ in made.job.steps(8):
        made.after(made.sends(False, OF_ROOT + LAYERS * OF_LAYER))
        for layer in range(-1, LAYERS + 1):
            made.forward(layer)
        for _ in range(LAYERS):
            made.backward(2)
            made.after(made.sends(True, OF_LAYER))
        made.optimizer()
        made.job.wait()
    assert not is_to_be_split(found_in(made.job.built)["communication.exposed"])


def test_a_model_without_layers_has_nothing_to_split() -> None:
    made = Sharded(FSDP1, 15.0)
    for _ in made.job.steps(8):
        made.after(made.sends(False, 4 * OF_ROOT))
        made.product(VOCABULARY, 4 * WIDTH, 12 * COMPUTE_NS)
        made.backward(12)
        made.after(made.sends(True, 4 * OF_ROOT))
        made.optimizer()
        made.job.wait()
    assert not is_to_be_split(found_in(made.job.built)["communication.exposed"])
