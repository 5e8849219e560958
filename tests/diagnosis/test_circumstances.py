"""Remedies fit what runs the loop: a server gets no training remedies, a sharded model no buckets of DDP."""

from __future__ import annotations

import pytest
from tests.diagnosis.cases import case_of, found_in
from tests.diagnosis.jobs import Job

from whystall.diagnosis.catalogue import causes
from whystall.diagnosis.circumstances import beside_compiled, circumstances, fitting
from whystall.testing.builder import BACKWARD_THREAD


def job(*marks: str, trains: bool = False, frames: tuple[str, ...] = ()) -> Job:
    """Six steps of four short products, each behind Python of 200 us, read at their end."""
    built = Job()
    for number in built.steps(6):
        begin = built.at
        for _ in range(4):
            built.python(200_000)
            built.operator("aten::mm", "gemm", 20_000)
        if trains:
            built.operator("aten::mm", "gemm", 20_000, **{"Fwd thread id": 1, "Sequence number": number})
        with built.inside("aten::item"):
            built.wait()
        for mark in marks:
            built.built.annotation(mark, at=begin, lasts=built.at - begin - 1_000)
        for depth, frame in enumerate(frames):
            built.built.python(frame, at=begin + depth, lasts=built.at - begin - 2 * depth)
    return built


@pytest.mark.parametrize(
    ("marks", "frames", "first"),
    [
        (("execute_context_1(8192)_generation_0(0)",), (), "when_serving"),
        (("step[DECODE bs=32]",), (), "when_serving"),
        ((), ("vllm/v1/worker/gpu_worker.py(88): execute_model",), "when_serving"),
        (("FSDP::all_gather",), (), "when_sharded"),
        (("DistributedDataParallel.forward",), (), "when_inference"),
        ((), (), "when_inference"),
    ],
)
def test_what_runs_a_job_is_known_by_the_names_that_it_leaves(
    marks: tuple[str, ...], frames: tuple[str, ...], first: str
) -> None:
    assert circumstances(case_of(job(*marks, frames=frames).built))[0] == first


def test_a_training_loop_is_neither_served_nor_inference() -> None:
    holds = circumstances(case_of(job("DistributedDataParallel.forward", trains=True).built))
    assert holds == ()


@pytest.mark.parametrize(
    ("layer", "dims", "trains", "holds"),
    [
        ("aten::linear", [[1, 12, 64], [64, 64]], False, True),
        ("aten::conv2d", [[1, 3, 32, 32], [8, 3, 3, 3]], False, True),
        ("aten::linear", [[8, 12, 64], [64, 64]], False, False),
        ("aten::linear", [[1, 12, 64], [64, 64]], True, False),  # one long sequence is a usual batch
    ],
)
def test_one_sample_at_a_time_is_told_by_what_layers_are_given(
    layer: str, dims: list[list[int]], *, trains: bool, holds: bool
) -> None:
    built = Job()
    for number in built.steps(6):
        with built.inside(layer, **{"Input Dims": dims}):  # type: ignore[arg-type]
            built.operator("aten::addmm", "gemm", 20_000, **{"Input Dims": [[64], [12, 64], [64, 64]]})  # type: ignore[arg-type]
        if trains:
            built.operator("aten::mm", "gemm", 20_000, **{"Fwd thread id": 1, "Sequence number": number})
    assert ("when_one_sample" in circumstances(case_of(built.built))) is holds


def test_where_one_sample_is_given_the_remedy_is_a_batch() -> None:
    assert "in one call" in fitting(causes()["host.small-operators"], ("when_one_sample", "when_inference")).text


@pytest.mark.parametrize(("mark", "compiles"), [("forward", True), ("Torch-Compiled Region: 0/0", False)])
def test_what_is_compiled_already_is_not_to_be_compiled(mark: str, compiles: bool) -> None:
    case, remedy = case_of(job(mark).built), fitting(causes()["compute.fusible"], ())
    told = beside_compiled(case, remedy)
    assert (told == remedy) is compiles
    assert (told.patch is not None) is compiles
    assert ("breaks between them" in told.text) is not compiles


@pytest.mark.parametrize("cause", ["host.sync", "host.python", "host.launch-bound"])
def test_a_server_gets_no_words_of_training(cause: str) -> None:
    text = fitting(causes()[cause], ("when_serving", "when_inference")).text
    assert "loss" not in text
    assert "loader" not in text


def test_a_remedy_for_another_wrapper_names_no_buckets_of_ddp() -> None:
    for cause in ("communication.exposed", "communication.small-messages"):
        for circumstance in ("when_serving", "when_sharded", "when_not_replicated"):
            assert "bucket_cap_mb" not in str(fitting(causes()[cause], (circumstance,)).patch)
        assert "bucket_cap_mb" in str(fitting(causes()[cause], ()).patch)


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        (("train.py(88): main", "torch/optim/adam.py(680): _multi_tensor_adam"), "fused=True"),
        (("train.py(88): main", "deepspeed/ops/adam/cpu_adam.py(120): step"), "numactl"),
        (("train.py(88): main", "torch/distributed/tensor/_dispatch.py(200): dispatch"), "dispatched once"),
        (
            ("train.py(88): main", "torch/nn/modules/module.py(2868): named_modules", "<built-in method add of set>"),
            "keep the list",
        ),
        (("train.py(88): main", "transformers/tokenization_utils_base.py(2800): __call__"), "fast tokenizer"),
        (("eval.py(40): main", "numpy/core/multiarray.py(153): concatenate"), "join it once at the end"),
        (("transformers/trainer_pt_utils.py(120): nested_concat", "<built-in method cat of type>"), "join it once"),
    ],
)
def test_python_is_mended_by_what_does_the_work(frames: tuple[str, ...], words: str) -> None:
    finding = found_in(job(trains=True, frames=frames).built)["host.python"]
    assert finding.remedy is not None
    assert words in finding.remedy.text
    told = {one.what: one.value for one in finding.evidence}["the costliest function in it"]
    assert str(told).startswith([frame for frame in frames if ".py(" in frame][-1])


@pytest.mark.parametrize(
    ("optimizer", "words", "offloaded"),
    [("DeepSpeedCPUAdam", "numactl", True), ("HybridAdam", "numactl", True), ("AdamW", "fused=True", False)],
)
def test_a_mark_of_an_optimizer_says_what_silent_time_within_it_is(optimizer: str, words: str, offloaded: bool) -> None:
    """Native code on the host leaves no operator: without stacks only the mark around it is known."""
    built = Job()
    for number in built.steps(6):
        built.operator("aten::mm", "gemm", 20_000, **{"Fwd thread id": 1, "Sequence number": number})
        built.wait()
        with built.marked(f"Optimizer.step#{optimizer}.step"):
            built.python(4_000_000)
            built.operator("aten::add_", "add", 5_000)
            built.python(4_000_000)
        built.wait()
    finding = found_in(built.built)["host.python"]
    assert finding.remedy is not None
    assert words in finding.remedy.text
    assert ("steps on the host" in finding.title) == offloaded


@pytest.mark.parametrize("loads", [0, 6_000_000])
def test_an_optimizer_on_the_host_takes_the_work_on_its_state_along(loads: int) -> None:
    """Gradients are clipped before it, and what it updated is copied: all of that is gone with states on the device.

    The next batch, which the training thread makes behind it, stays.
    """

    def training(*, offloaded: bool) -> Job:
        built = Job()
        for number in built.steps(6):
            built.operator("aten::mm", "gemm", 5_000_000, **{"Fwd thread id": 1, "Sequence number": number})
            built.wait()
            if offloaded:
                with built.inside("aten::norm"):
                    built.python(2_000_000)
                with built.marked("Optimizer.step#DeepSpeedCPUAdam.step"):
                    built.python(4_000_000)
                built.launch("Memcpy HtoD", 1_000_000, call="MemcpyAsync", category="gpu_memcpy", bytes=25_000_000)
                built.wait()
            if loads:
                with built.marked("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
                    built.python(loads)
        return built

    job = training(offloaded=True)
    gain = found_in(job.built)["host.python"].gain
    assert gain is not None
    assert gain.floor <= job.step_ns / training(offloaded=False).step_ns <= gain.ceiling
    assert gain.expected > job.step_ns / (job.step_ns - 5_500_000)


@pytest.mark.parametrize("waits", [0, 1, 8])
def test_waits_in_a_forward_pass_divide_its_launches_whatever_the_backward_pass_does(waits: int) -> None:
    built = Job()
    for number in built.steps(6):
        for piece in range(8):
            for _ in range(4):
                built.operator("aten::mul", "elementwise", 5_000)
            if piece < waits:
                built.wait()
        for _ in range(64):
            more = {"Fwd thread id": 1, "Sequence number": number}
            built.operator("aten::mul", "elementwise", 5_000, thread=BACKWARD_THREAD, **more)
        built.wait()
    assert ("when_waits" in circumstances(case_of(built.built))) == (waits == 8)
