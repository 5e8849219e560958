"""episodic.checkpoint: saving that training waits for fires it, by name or by its copies;
activation checkpoints do not.
"""

from __future__ import annotations

from typing import Final

import pytest
from tests.diagnosis.cases import found_in, found_in_runs, line, run
from tests.diagnosis.jobs import Job, is_worth

PRODUCT_NS: Final = 2_000_000
SAVE_NS: Final = 10_000_000
EVERY: Final = 5


def training(name: str, lasts: int = SAVE_NS, *, frame: bool = False, api: str = "cuda", every: int = EVERY) -> Job:
    """Twenty-six steps of a product; in every fifth something else is done before, under a name."""
    job = Job(api=api)
    for number in job.steps(26):
        if number % every == 2 % every:
            mark = job.built.python if frame else job.built.annotation
            mark(name, at=job.at, lasts=lasts)
            job.python(lasts)
        job.operator("aten::mm", "gemm", PRODUCT_NS)
        job.wait()
    return job


@pytest.mark.parametrize(
    ("name", "frame", "api"),
    [
        ("save_checkpoint", False, "cuda"),
        ("checkpoint", False, "hip"),
        ("torch/serialization.py(943): save", True, "cuda"),
        ("torch/serialization.py(379): save", True, "cuda"),  # of an older torch
        ("torch/distributed/checkpoint/state_dict_saver.py(115): save", True, "cuda"),
        ("torchtitan/components/checkpoint.py(480): save", True, "cuda"),
        ("accelerate/accelerator.py(3210): save_state", True, "cuda"),
        ("[pl][profile][Callback]ModelCheckpoint{'monitor': None}.on_train_batch_end", False, "cuda"),
    ],
)
def test_saving_every_fifth_step_is_worth_a_fifth_of_it(name: str, frame: bool, api: str) -> None:
    finding = found_in(training(name, frame=frame, api=api).built)["episodic.checkpoint"]
    step = PRODUCT_NS + 8_000
    is_worth(finding, (step + SAVE_NS / EVERY) / step, within=0.1)
    assert finding.severity == "critical"


@pytest.mark.parametrize(
    ("name", "frame"),
    [
        ("torch/utils/checkpoint.py(488): checkpoint", True),  # activations
        ("CheckpointFunction", False),
        ("fairscale/nn/checkpoint/activation_checkpoint.py(170): forward", True),
        ("torch/nn/modules/module.py(2433): load_state_dict", True),
        ("train.py(12): saved_tensors_hooks", True),
    ],
)
def test_activation_checkpoints_and_loading_save_nothing(name: str, frame: bool) -> None:
    assert "episodic.checkpoint" not in found_in(training(name, frame=frame).built)


def test_saving_that_hardly_takes_time_is_none() -> None:
    assert "episodic.checkpoint" not in found_in(training("save_checkpoint", 100_000).built)  # 1 % of a step


def copying(
    copies: int, *, direction: str = "DtoH (Device -> Pageable)", api: str = "cuda", pause: int = SAVE_NS, size: int = 4
) -> Job:
    """Twenty-six steps; in every fifth the state is copied, and then nothing is seen of the host for a while."""
    job = Job(api=api)
    for number in job.steps(26):
        if number % EVERY == 2:
            for _ in range(copies):
                job.launch(f"Memcpy {direction}", 20_000, call="MemcpyAsync", category="gpu_memcpy", bytes=size)
                job.wait()
            job.python(pause)
        job.operator("aten::mm", "gemm", PRODUCT_NS)
        job.wait()
    return job


@pytest.mark.parametrize(
    ("direction", "api"),
    [("DtoH (Device -> Pageable)", "cuda"), ("DtoH (Device -> Pinned)", "cuda"), ("DtoH (Device -> Host)", "hip")],
)
def test_without_names_many_copies_and_a_long_pause_tell(direction: str, api: str) -> None:
    finding = found_in(copying(40, direction=direction, api=api).built)["episodic.checkpoint"]
    step = PRODUCT_NS + 8_000
    is_worth(finding, (step + (SAVE_NS + 40 * 28_000) / EVERY) / step, within=0.1)


def test_a_state_in_few_large_tensors_is_one_as_well() -> None:
    """Four copies of 2 MiB are no values to log."""
    assert "episodic.checkpoint" in found_in(copying(4, size=2 << 20).built)
    assert "episodic.checkpoint" not in found_in(copying(4).built)


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(copying(1), id="a value that is read and worked on"),
        pytest.param(copying(40, direction="HtoD (Pinned -> Device)"), id="the other way"),
        pytest.param(copying(40, pause=50_000), id="nothing is written"),
    ],
)
def test_a_pause_or_copies_alone_are_no_checkpoint(job: Job) -> None:
    assert "episodic.checkpoint" not in found_in(job.built)


@pytest.mark.parametrize(("share", "fires"), [(0.2, True), (0.01, False)])
def test_the_time_in_torch_save(share: float, *, fires: bool) -> None:
    found = found_in_runs(run(shares={"save": share}))
    assert ("episodic.checkpoint" in found) is fires
    if fires:
        is_worth(found["episodic.checkpoint"], 1 / (1 - share))


def test_looks_that_found_a_function_of_saving() -> None:
    found = found_in_runs(run(shares={"other": 0.22}, places=[line(0.2, part="checkpoint")]))
    assert list(found) == ["episodic.checkpoint"]
    assert [place.symbol for place in found["episodic.checkpoint"].code] == ["x = f()"]


def test_how_long_a_disk_takes_differs_from_run_to_run() -> None:
    """Three quarters of the time at the least, and 1.3 times at the most; what stays may be 18 % shorter on a CPU."""
    gain = found_in_runs(run(shares={"save": 0.4}))["episodic.checkpoint"].gain
    assert gain is not None
    assert gain.floor == pytest.approx(1 / (1 - 0.4 * 0.75), rel=0.06)
    assert gain.ceiling == pytest.approx(1 / (1 - 0.4 * 1.3) / (1 - 0.18), rel=0.02)


def test_a_function_that_holds_the_steps_is_no_checkpoint_whatever_it_is_called() -> None:
    job = training("save_checkpoint", frame=True)
    alone = found_in(job.built)["episodic.checkpoint"]
    job.built.python("train.py(3): checkpointed_training", at=0, lasts=job.at)
    within = found_in(job.built)["episodic.checkpoint"]
    assert within.gain == alone.gain


@pytest.mark.parametrize(
    ("text", "fires"),
    [
        ("pickle.dump(weights, f)", True),
        ("np.savez_compressed(path, **arrays)", True),
        ("save_file(model.state_dict(), path)", True),
        ("model.save_pretrained(out)", True),
        ("connection.send(pickle.dumps(batch))", False),
        ("history.save_later(loss)", False),
        ("pickle.dump(message, sock_file)", False),
        ("np.save(io.BytesIO(), batch)", False),
        ("snapshot = env.save_state()", False),
        ("weights = pickle.load(f)", False),
    ],
)
def test_lines_that_write_objects_or_arrays_save(text: str, *, fires: bool) -> None:
    found = found_in_runs(run(shares={"other": 0.3}, places=[line(0.28, text=text, leaf="gzip:write")]))
    assert list(found) == (["episodic.checkpoint"] if fires else ["host.python"])
    (only,) = found.values()
    is_worth(only, 1 / (1 - 0.28), within=0.06)


def test_what_is_saved_within_the_forward_pass_is_no_checkpoint() -> None:
    place = line(0.28, text="pickle.dump(seen, f)", part="forward")
    assert "episodic.checkpoint" not in found_in_runs(run(shares={"forward": 0.5}, places=[place]))


@pytest.mark.parametrize(
    "frame",
    [
        "torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py(170): forward",
        "my_layers/checkpointing.py(31): checkpointed_block",
        "model.py(12): checkpoint_block",
    ],
)
def test_what_multiplies_matrices_recomputes_activations_whatever_it_is_called(frame: str) -> None:
    job = Job()
    for _ in job.steps(12):
        begin = job.at
        job.python(2_000_000)
        job.operator("aten::mm", "gemm", PRODUCT_NS)
        job.built.python(frame, at=begin, lasts=job.at - begin)
        job.wait()
    assert "episodic.checkpoint" not in found_in(job.built)
