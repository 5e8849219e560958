"""compute.redundant-work: forward work done twice or for nothing fires it, by autograd's numbers;
other work does not.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import torch
from tests.diagnosis.cases import found_in, found_in_runs, line, run
from tests.diagnosis.detectors.recordings import found_in as found_in_recording
from tests.diagnosis.detectors.recordings import told_in
from tests.diagnosis.jobs import Job, is_worth, shaped
from torch.utils.checkpoint import checkpoint

from whystall.diagnosis.rules.compute import redundant_work
from whystall.diagnosis.run_facts import RunFacts
from whystall.run_folder.observations import CountedLabels, Observations, RepeatedModule, RepeatedWork
from whystall.testing.builder import BACKWARD_THREAD

LAYERS: Final = 4
FORWARD_NS: Final = 300_000
CUDA: Final = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"
HIP: Final = "Cijk_Alik_Bljk_BBS_BH_MT256x128x64_MI16x16x1_SN_LDSB1"


def seen_by(rank: int, **observed: Any) -> dict[str, Any]:
    """The facts of a run in which a rank observed something."""
    return {"observed": {rank: Observations(**observed)}, "cores": 4, "threads": 4}


def forward(job: Job, number: int, kernel: str, *, lasts: int = FORWARD_NS, numbered: bool = True) -> None:
    """A layer; without a number where autograd is off."""
    more = {"Sequence number": number, "Fwd thread id": 0} if numbered else {}
    job.operator("aten::mm", kernel, lasts, **more)


def backward(job: Job, number: int, kernel: str) -> None:
    """The gradients of a layer: twice its work."""
    numbers = {"Sequence number": number, "Fwd thread id": 1}
    with (
        job.inside("autograd::engine::evaluate_function: MmBackward0", thread=BACKWARD_THREAD, **numbers),
        job.inside("MmBackward0", thread=BACKWARD_THREAD, **numbers),
    ):
        for _ in range(2):
            job.operator("aten::mm", kernel, FORWARD_NS, thread=BACKWARD_THREAD)


def trained(kernel: str = CUDA, *, api: str = "cuda", between: Callable[[Job, int], None] | None = None) -> Job:
    """Eight steps of four layers forward and backward, with something between the two."""
    job = Job(api=api)
    for step in job.steps(8):
        first = step * 100
        for layer in range(LAYERS):
            forward(job, first + layer, kernel)
        if between is not None:
            between(job, first + 50)
        for layer in reversed(range(LAYERS)):
            backward(job, first + layer, kernel)
        job.wait()
    return job


@pytest.mark.parametrize(
    ("kernel", "api", "around"),
    [
        (CUDA, "cuda", "CheckpointFunctionBackward"),  # the reentrant form, and every form of old versions
        (HIP, "hip", "CheckpointFunctionBackward"),
        (CUDA, "cuda", "MmBackward0"),  # the newer form recomputes where the first saved tensor is asked for
    ],
)
def test_layers_that_are_computed_again_are_worth_a_quarter(kernel: str, api: str, around: str) -> None:
    """Forward and backward are three parts, and the second forward pass a fourth (reference: causes.md)."""
    job = Job(api=api)
    for step in job.steps(8):
        first = step * 100
        for layer in range(LAYERS):
            forward(job, first + layer, kernel, numbered=around != "CheckpointFunctionBackward")
        for layer in reversed(range(LAYERS)):
            number = first + layer
            numbers = {"Sequence number": number, "Fwd thread id": 1}
            with (
                job.inside(f"autograd::engine::evaluate_function: {around}", thread=BACKWARD_THREAD, **numbers),
                job.inside(around, thread=BACKWARD_THREAD, **numbers),
            ):
                again = {"Sequence number": number + 50, "Fwd thread id": 0}
                job.operator("aten::mm", kernel, FORWARD_NS, thread=BACKWARD_THREAD, **again)
                backward(job, number + 50, kernel)
        job.wait()
    finding = found_in(job.built)["compute.redundant-work"]
    assert "again in the backward pass" in finding.title
    is_worth(finding, job.step_ns / (job.step_ns - LAYERS * FORWARD_NS))
    is_worth(finding, 4 / 3)


@pytest.mark.parametrize(("kernel", "api"), [(CUDA, "cuda"), (HIP, "hip")])
def test_a_forward_pass_that_no_backward_pass_uses_is_worth_its_time(kernel: str, api: str) -> None:
    """As of metrics that are computed without torch.no_grad."""

    def second(job: Job, first: int) -> None:
        for layer in range(LAYERS):
            forward(job, first + layer, kernel)

    job = trained(kernel, api=api, between=second)
    finding = found_in(job.built)["compute.redundant-work"]
    assert "no backward pass uses" in finding.title
    is_worth(finding, job.step_ns / (job.step_ns - LAYERS * FORWARD_NS))


def test_the_pass_of_a_frozen_model_is_not_for_nothing() -> None:
    """It has more layers than the trained one: what it computes is what the trained one learns from."""

    def frozen(job: Job, first: int) -> None:
        for layer in range(3 * LAYERS):
            forward(job, first + layer, CUDA)

    assert "compute.redundant-work" not in found_in(trained(between=frozen).built)


def test_a_call_whose_first_view_is_not_used_is_used_by_its_product() -> None:
    """As matmul of a matrix and a batch: it turns one over for a look at it, and numbers are counted from there."""
    job = Job()
    for step in job.steps(8):
        numbers = [step * 100 + 10 * layer for layer in range(LAYERS)]
        for number in numbers:
            with job.inside("aten::matmul", **{"Sequence number": number, "Fwd thread id": 0}):
                with job.inside("aten::transpose", **{"Sequence number": number, "Fwd thread id": 0}):
                    job.python(1_000)
                forward(job, number + 5, CUDA)
        for number in reversed(numbers):
            backward(job, number + 5, CUDA)
        job.wait()
    assert "compute.redundant-work" not in found_in(job.built)


def penalised(*inside: str) -> Job:
    """Four layers, a gradient of which the gradient is taken, and what its backward nodes call, numbered again."""
    job = Job()
    for step in job.steps(8):
        first = step * 100
        for layer in range(LAYERS):
            with job.inside("aten::linear", **{"Sequence number": first + layer, "Fwd thread id": 0}):
                job.python(FORWARD_NS)
        for later in (0, 50):
            for layer in reversed(range(LAYERS)):
                numbers = {"Sequence number": first + layer + later, "Fwd thread id": 1}
                with (
                    job.inside("autograd::engine::evaluate_function: AddmmBackward0", **numbers),
                    job.inside("AddmmBackward0", **numbers),
                ):
                    again = {"Sequence number": first + layer + 50, "Fwd thread id": 0} if not later else {}
                    for name in inside:
                        with job.inside(name, **again):
                            job.python(FORWARD_NS)
    return job


def test_the_gradient_of_a_gradient_is_no_forward_pass_done_again() -> None:
    """Penalties on gradients, differential equations: a backward node calls products, and no layer.

    A running sum's calls a sum as the forward pass does, between what turns it around.
    """
    assert "compute.redundant-work" in found_in(penalised("aten::linear").built)
    assert "compute.redundant-work" not in found_in(penalised("aten::mm").built)
    assert "compute.redundant-work" not in found_in(penalised("aten::flip", "aten::linear", "aten::flip").built)


def _a_little(job: Job, number: int) -> None:
    forward(job, number, CUDA, lasts=50_000)


def _without_gradients(job: Job, number: int) -> None:
    for layer in range(LAYERS):
        forward(job, number + layer, CUDA, numbered=False)


def _no_product(job: Job, number: int) -> None:
    for _ in range(4):
        job.operator("aten::add", "vectorized_elementwise_kernel<4, CUDAFunctor_add>", 100_000)
        job.operator("aten::_log_softmax", "cunn_SoftMaxForward", 50_000, **{"Sequence number": number})


@pytest.mark.parametrize("between", [None, _a_little, _without_gradients, _no_product])
def test_work_that_is_used_or_small_or_needs_no_gradient_is_none(between: Callable[[Job, int], None] | None) -> None:
    assert "compute.redundant-work" not in found_in(trained(between=between).built)


def test_inference_has_no_backward_pass_that_could_repeat_work() -> None:
    job = Job()
    for step in job.steps(8):
        for layer in range(2 * LAYERS):
            forward(job, step * 100 + layer, CUDA)
        job.wait()
    assert "compute.redundant-work" not in found_in(job.built)


def test_a_pass_in_one_step_of_many_is_an_episode() -> None:
    def once(job: Job, first: int) -> None:
        for layer in range(8 * LAYERS if first == 450 else 0):
            forward(job, first + layer, CUDA)

    assert "compute.redundant-work" not in found_in(trained(between=once).built)


@pytest.mark.parametrize(("again", "fires"), [(0.6, True), (0.03, False)])
def test_calls_that_come_out_as_before_are_worth_their_time(again: float, *, fires: bool) -> None:
    tower = RepeatedModule("Tower", "serve.py", 12, "answer", "items = tower(features)", round(again * 900))
    seen = RepeatedWork(steps=3, calls=6, again_ns=round(again * 1_000), measured_ns=1_000, error=0.01, modules=[tower])
    found = found_in_runs(run(), **seen_by(0, repeated=seen))
    assert ("compute.redundant-work" in found) is fires
    if fires:
        finding = found["compute.redundant-work"]
        is_worth(finding, 1 / (1 - again))
        assert "Tower is given again what it was given before" in finding.title
        assert [(line.file, line.line) for line in finding.code] == [("serve.py", 12)]
        assert finding.code_explains == pytest.approx(0.9)
        assert finding.remedy is not None
        assert "Compute it once" in finding.remedy.text
    assert "compute.redundant-work" not in found_in_runs(
        run(), observed={1: Observations(repeated=seen)}, cores=4, threads=4
    )


def test_a_parametrized_weight_is_kept_by_torchs_own_means() -> None:
    made = RepeatedModule("ParametrizationList", "rnn.py", 12, "forward", "h = cell(x, h)", 500)
    seen = RepeatedWork(steps=3, calls=6, again_ns=600, measured_ns=1_000, error=0.01, modules=[made])
    remedy = found_in_runs(run(), **seen_by(0, repeated=seen))["compute.redundant-work"].remedy
    assert remedy is not None
    assert "parametrize.cached()" in (remedy.patch or "")


@pytest.mark.parametrize(("calls", "steps", "low"), [(6, 1000, 1.25), (2, 1000, 1.15), (1, 1000, None), (2, 20, None)])
def test_what_comes_again_by_itself_is_worth_what_all_calls_of_the_run_would_find(
    calls: int, steps: int, low: float | None
) -> None:
    """Of 16 calls that take 0.3 of a step some came again: there are few such things, and most calls find one."""
    area = RepeatedModule("AreaEncoder", "serve.py", 61, "encode", "return area(tile)", 19 * calls)
    again = {"calls": calls, "again_ns": 19 * calls, "kind_calls": 16, "kind_ns": 300}
    seen = RepeatedWork(steps=16, measured_ns=1_000, error=0.01, modules=[area], **again)
    found = found_in_runs(run(steps=steps), **seen_by(0, repeated=seen)).get("compute.redundant-work")
    if low is None:
        assert found is None or found.gain is None or found.gain.expected < 1.2
        return
    assert found is not None
    assert found.gain is not None
    assert low < found.gain.floor < found.gain.expected <= 1 / (1 - 0.3) <= found.gain.ceiling
    assert found.remedy is not None
    assert "as the key of a cache a tensor is never found again" in found.remedy.text


@pytest.mark.parametrize(("share", "fires"), [(0.3, True), (0.03, False)])
def test_what_nothing_reads_is_worth_its_time_in_a_usual_step(share: float, *, fires: bool) -> None:
    """Steps are longer while each operator is followed, and the operators are not."""
    watched = run()
    ns = round(share * watched.mean_ns)
    mm = RepeatedModule("aten::mm", "train.py", 21, "backward", "grad_x = grad @ weight", 4 * ns)
    longer = round(4 * 1.5 * watched.mean_ns)
    seen = RepeatedWork(steps=4, calls=4, again_ns=4 * ns, measured_ns=longer, error=0.01, modules=[mm])
    found = found_in_runs(watched, **seen_by(0, unread=seen))
    assert ("compute.redundant-work" in found) is fires
    if fires:
        finding = found["compute.redundant-work"]
        is_worth(finding, 1 / (1 - share))
        assert "nothing reads what aten::mm gives" in finding.title
        assert [(line.file, line.line) for line in finding.code] == [("train.py", 21)]
        assert finding.remedy is not None
        assert "needs_input_grad" in finding.remedy.text


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        pytest.param(21, 1.1 * 0.3, id="found there in three of ten looks"),
        pytest.param(99, 0.9, id="that line was never found"),
    ],
)
def test_what_nothing_reads_now_and_then_is_no_more_than_the_run_was_found_at_it(at: int, expected: float) -> None:
    """Steps that were looked at held more of it than others do: a network's speed is measured now and then."""
    watched = run(places=[line(0.3, at=at, part="forward"), line(0.7, at=30, part="backward")])
    ns = round(0.9 * watched.mean_ns)
    called = RepeatedModule("aten::convolution", "train.py", 21, "step", "net(x)", 4 * ns)
    seen = RepeatedWork(steps=4, calls=4, again_ns=4 * ns, measured_ns=8 * ns, error=0.01, modules=[called])
    finding = found_in_runs(watched, **seen_by(0, unread=seen))["compute.redundant-work"]
    is_worth(finding, 1 / (1 - expected), within=0.01)


def test_the_first_of_all_in_order_is_told_where_it_is_picked_by_numbers(tmp_path: Path) -> None:
    """argsort, and then a first few of its numbers pick the scores: the sizes of the numbers stand in a view alone."""
    score = torch.randn(100_000)

    def step() -> object:
        order = torch.argsort(score, descending=True)
        return order[:50].tolist(), score[order[:50]].tolist()

    finding = found_in_recording(step, tmp_path)["compute.redundant-work"]
    assert "100,000 places are sorted, 50 are read" in finding.title


@pytest.mark.parametrize(
    ("looks", "told"),
    [
        (lambda order, target: (order == target[:, None]).nonzero()[:, 1], True),
        (lambda order, target: (order == target[:, None]).int().argmax(1), True),
        (lambda order, target: torch.where(order == target[:, None])[1], True),
        (lambda order, target: (order == target[:, None]).cumsum(1).float().mean(1), False),
        (lambda order, target: ((order == target[:, None]).nonzero(), order.float().mean()), False),
        (lambda order, target: (order == torch.arange(4000)).nonzero(), False),
    ],
)
def test_a_sort_that_only_finds_ranks_is_counted_instead(
    looks: Callable[[torch.Tensor, torch.Tensor], object], *, told: bool, tmp_path: Path
) -> None:
    scores, target = torch.randn(48, 4000), torch.randint(0, 4000, (48,))
    weights = torch.randn(256, 256)

    def step() -> None:
        for _ in range(4):
            weights @ weights
        looks(scores.argsort(dim=1, descending=True), target)

    finding = found_in_recording(step, tmp_path).get("compute.redundant-work")
    assert (finding is not None and "places are sorted" in finding.title) is told
    if told:
        assert finding is not None
        assert finding.remedy is not None
        assert ".sum(1)" in (finding.remedy.patch or "")


def test_gradients_that_go_back_through_repeated_calls_are_worth_as_much_again() -> None:
    """The forward pass is 0.2 of a step, the backward pass 0.6: a tenth that is called again costs three tenths more.

    Of calls that no gradient goes through the forward pass alone is saved.
    """
    tower = RepeatedModule("Tower", "train.py", 12, "step", "again = tower(x)", 100)
    watched = run(shares={"forward": 0.2, "backward": 0.6, "optimizer": 0.1})
    for through, whole, most in ((100, 0.4, 0.4), (50, 0.25, 0.25), (0, 0.1, 0.1)):
        seen = RepeatedWork(
            steps=3, calls=3, again_ns=100, differentiated_ns=through, measured_ns=1_000, error=0.0, modules=[tower]
        )
        gain = found_in_runs(watched, **seen_by(0, repeated=seen))["compute.redundant-work"].gain
        assert gain is not None
        assert gain.expected == pytest.approx(1 / (1 - whole), rel=0.01)
        assert gain.ceiling >= 1 / (1 - most)
        assert gain.floor < 1 / (1 - 0.1)


def test_tokens_that_begin_as_before_are_worth_keeping_what_was_computed() -> None:
    """Half of the time is of a shared beginning: what follows it needs as many calls, so not all is saved."""
    scorer = RepeatedModule("Decoder", "score.py", 12, "score", "out = model(ids)", 500)
    seen = RepeatedWork(
        steps=3, calls=9, again_ns=500, shared_ns=500, measured_ns=1_000, error=0.0, modules=[scorer]
    )  # fmt: skip
    finding = found_in_runs(run(), **seen_by(0, repeated=seen))["compute.redundant-work"]
    assert "begin as those of the call before" in finding.title
    assert finding.gain is not None
    assert 1 < finding.gain.floor < finding.gain.expected < 2.0 <= finding.gain.ceiling
    assert finding.remedy is not None
    assert "past_key_values" in (finding.remedy.patch or "")


HEAD: Final[dict[str, Any]] = {"Input Dims": [[576, 192], [192, 16000]], "Input type": ["float", "float"]}
MADE: Final = [6, 96, 16000]
HEAD_NS: Final = 30_000_000
LAYERS_NS: Final = 20_000_000


def reading(name: str, dims: list[list[int]], *values: str) -> tuple[str, dict[str, Any]]:
    """A call as Kineto records it: sizes, and what is no tensor as it is written."""
    return name, {"Input Dims": dims, "Input type": ["float"], "Concrete Inputs": ["", *values]}


LAST: Final = reading("aten::select", [MADE, [], []], "1", "-1")
VIEW: Final = reading("aten::_unsafe_view", [[576, 16000], []], "[6, 96, 16000]")


def scoring(*after: tuple[str, dict[str, Any]], **head: list[list[int]]) -> Job:
    """Eight steps without a backward pass: layers, a head for all places, and what reads what it made."""
    made = Job()
    for _ in made.steps(8):
        with made.inside("aten::silu", **{"Input Dims": [[6, 96, 512]], "Input type": ["float"]}):  # type: ignore[arg-type]
            made.python(LAYERS_NS)
        with made.inside("aten::mm", **{**HEAD, **({"Input Dims": head["head"]} if head else {})}):
            made.python(HEAD_NS)
        for name, recorded in after:
            with made.inside(name, **recorded):
                made.python(10_000)
    return made


def test_a_head_of_which_the_last_place_is_read_is_worth_all_others() -> None:
    finding = found_in(scoring(VIEW, LAST).built)["compute.redundant-work"]
    is_worth(finding, (HEAD_NS + LAYERS_NS) / (HEAD_NS / 96 + LAYERS_NS))
    assert finding.remedy is not None
    assert "logits_to_keep" in finding.remedy.text


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(scoring(VIEW), id="nobody knows who reads it"),
        pytest.param(scoring(VIEW, reading("aten::argmax", [MADE], "-1")), id="all of it is read"),
        pytest.param(
            scoring(VIEW, LAST, reading("aten::cross_entropy_loss", [[576, 16000]])), id="a loss reads it too"
        ),
        pytest.param(
            scoring(VIEW, reading("aten::slice", [MADE, [], [], [], []], "1", "", "-1", "1")), id="all but one is read"
        ),
        pytest.param(
            scoring(VIEW, *(reading("aten::select", [MADE, [], []], "1", str(place)) for place in range(96))),
            id="all are read, one by one",
        ),
        pytest.param(
            scoring(VIEW, reading("aten::slice", [MADE, [], [], [], []], "2", "0", "100", "1")),
            id="columns of all rows",
        ),
        pytest.param(
            scoring(reading("aten::select", [[576, 192], [], []], "0", "-1"), head=[[576, 768], [768, 192]]),
            id="no head, as what makes no more than it is given",
        ),
    ],
)
def test_heads_that_are_read(job: Job) -> None:
    assert "compute.redundant-work" not in found_in(job.built)


def test_a_head_whose_labels_are_mostly_ignored_is_worth_the_rest_of_its_rows() -> None:
    """A quarter of the rows has a label; what the loss does with the scores goes with them."""
    loss = reading("aten::_log_softmax", [[576, 16000], [], []], "1", "False")
    facts = RunFacts(observed={0: Observations(labels=(CountedLabels(576, 16000, 0.25),))})
    finding = found_in(scoring(VIEW, loss).built, facts=facts)["compute.redundant-work"]
    is_worth(finding, (HEAD_NS + LAYERS_NS) / (HEAD_NS / 4 + LAYERS_NS))
    assert finding.remedy is not None
    assert "labels[keep]" in (finding.remedy.patch or "")


@pytest.mark.parametrize("seen", [CountedLabels(576, 16000, 0.9), CountedLabels(288, 32000, 0.25)])
def test_labels_that_count_or_are_those_of_other_scores(seen: CountedLabels) -> None:
    facts = RunFacts(observed={0: Observations(labels=(seen,))})
    assert "compute.redundant-work" not in found_in(scoring(VIEW).built, facts=facts)


SCORES: Final = [32, 30_000]
SORT_NS: Final = 30_000_000


def sorting(
    *after: tuple[str, dict[str, Any]],
    by: tuple[str, dict[str, Any]] = reading("aten::argsort", [SCORES, [], []], "1", "True"),
) -> Job:
    """Eight steps of other work, a sort, and what reads what it made."""
    made = Job()
    for _ in made.steps(8):
        with made.inside("aten::mm", **{"Input Dims": [[32, 96], [96, 30_000]], "Input type": ["float", "float"]}):  # type: ignore[arg-type]
            made.python(LAYERS_NS)
        with made.inside(by[0], **by[1]), made.inside("aten::copy_", **{"Input Dims": [SCORES, SCORES, []]}):  # type: ignore[arg-type]
            made.python(SORT_NS)
        for name, recorded in after:
            with made.inside(name, **recorded):
                made.python(10_000)
    return made


FIRST: Final = reading("aten::slice", [SCORES, [], [], [], []], "1", "0", "20", "1")
BEST: Final = reading("aten::gather", [SCORES, [], [32, 20], []], "1", "", "False")


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(sorting(FIRST, BEST), id="the first, with their scores"),
        pytest.param(sorting(reading("aten::slice", [SCORES], "1", "-20", "", "1")), id="the last"),
        pytest.param(
            sorting(FIRST, by=reading("aten::sort", [SCORES, [], [], []], "False", "-1", "True")), id="a stable sort"
        ),
    ],
)
def test_a_sort_of_which_a_few_are_read_is_worth_most_of_it(job: Job) -> None:
    finding = found_in(job.built)["compute.redundant-work"]
    is_worth(finding, (SORT_NS + LAYERS_NS) / (SORT_NS / 10 + LAYERS_NS), within=0.05)
    assert finding.remedy is not None
    assert "topk" in (finding.remedy.patch or "")


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(sorting(), id="nobody knows who reads it"),
        pytest.param(sorting(BEST), id="what was sorted is read, and not the order"),
        pytest.param(sorting(FIRST, reading("aten::index", [SCORES, SCORES])), id="all of it is read, too"),
        pytest.param(sorting(FIRST, reading("aten::softmax", [SCORES], "1")), id="something of its size is read"),
        pytest.param(sorting(reading("aten::slice", [SCORES], "1", "0", "15000", "1")), id="half of it"),
        pytest.param(sorting(reading("aten::slice", [SCORES], "1", "14990", "15010", "1")), id="the middle"),
        pytest.param(sorting(reading("aten::slice", [SCORES], "0", "0", "1", "1")), id="all of one row"),
        pytest.param(sorting(reading("aten::select", [SCORES], "1", "15000")), id="the median"),
        pytest.param(sorting(FIRST, by=reading("aten::argsort", [SCORES], "0", "True")), id="along the other side"),
        pytest.param(sorting(FIRST, by=reading("aten::topk", [SCORES], "20", "1")), id="no sort"),
        pytest.param(sorting(reading("aten::slice", [SCORES], "", "x", "1")), id="nonsense"),
    ],
)
def test_sorts_that_are_read_or_of_which_nobody_knows(job: Job) -> None:
    assert "compute.redundant-work" not in found_in(job.built)


POOLED: Final = reading("aten::mul", [[6, 96, 192], [6, 96, 1]])


@pytest.mark.parametrize(("share", "backward", "fires"), [(0.2, 1.0, True), (0.3, 0.0, True), (0.03, 1.0, False)])
def test_rows_that_a_mask_throws_away_cost_their_backward_pass_as_well(
    share: float, backward: float, *, fires: bool
) -> None:
    watched = run(shares={"backward": 0.5, "other": 0.0})
    ns = round(share * watched.mean_ns)
    back = round(4 * ns * backward)
    mm = RepeatedModule("aten::addmm", "train.py", 14, "forward", "out = torch.where(mask, expert(x), out)", 4 * ns)
    longer = round(8 * watched.mean_ns)
    seen = RepeatedWork(
        steps=4, calls=24, again_ns=4 * ns, differentiated_ns=back, measured_ns=longer, error=0.01, modules=[mm]
    )
    found = found_in_runs(watched, **seen_by(0, masked=seen))
    assert ("compute.redundant-work" in found) is fires
    if fires:
        finding = found["compute.redundant-work"]
        assert finding.gain is not None
        # gradients of what a product was given and of its weights: as much again each, at most
        most = 1 / (1 - share * (1 + 2 * backward))
        assert finding.gain.floor < finding.gain.expected <= most <= finding.gain.ceiling
        assert "a mask throws away most rows of what aten::addmm gives" in finding.title
        assert [(line.file, line.line) for line in finding.code] == [("train.py", 14)]
        assert finding.remedy is not None
        assert "index_add" in (finding.remedy.patch or "")


@pytest.mark.parametrize(
    ("name", "share", "backward", "patch"),
    [
        ("aten::div", 0.3, 0.0, "crop first"),
        ("aten::convolution", 0.2, 1.0, "stride=2"),
        ("aten::randperm", 0.6, 0.0, "torch.randint"),
        ("aten::div", 0.03, 0.0, None),
    ],
)
def test_what_is_read_in_part_costs_the_rest_of_it(name: str, share: float, backward: float, patch: str | None) -> None:
    watched = run(shares={"backward": 0.5, "other": 0.0})
    ns = round(share * watched.mean_ns)
    made = RepeatedModule(name, "train.py", 9, "sample", "x = normalise(x)[:, top : top + 96]", 4 * ns)
    seen = RepeatedWork(
        steps=4,
        calls=24,
        again_ns=4 * ns,
        differentiated_ns=round(4 * ns * backward),
        measured_ns=round(8 * watched.mean_ns),
        error=0.01,
        modules=[made],
    )
    found = found_in_runs(watched, **seen_by(0, partly=seen))
    assert ("compute.redundant-work" in found) is (patch is not None)
    if patch is not None:
        finding = found["compute.redundant-work"]
        assert finding.gain is not None
        most = 1 / (1 - share * (1 + 2 * backward))
        assert finding.gain.floor < finding.gain.expected <= most <= finding.gain.ceiling
        assert f"only a part of what {name} gives is read" in finding.title
        assert [(line.file, line.line) for line in finding.code] == [("train.py", 9)]
        assert finding.remedy is not None
        assert patch in (finding.remedy.patch or "")


@pytest.mark.parametrize(("share", "learns", "fires"), [(0.9, False, True), (0.1, True, True), (0.03, False, False)])
def test_rows_that_are_alike_cost_what_is_made_of_them(share: float, *, learns: bool, fires: bool) -> None:
    watched = run(shares={"forward": 0.3, "backward": 0.6 if learns else 0.0, "other": 0.1})
    ns = round(share * 4 * watched.mean_ns)
    lstm = RepeatedModule("LSTM", "serve.py", 55, "encode", "out, state = self.rnn(x.repeat_interleave(80, 0))", ns)
    seen = RepeatedWork(
        steps=4,
        calls=4,
        again_ns=ns,
        differentiated_ns=ns if learns else 0,
        measured_ns=round(4 * watched.mean_ns),
        error=0.005,
        modules=[lstm],
    )
    found = found_in_runs(watched, **seen_by(0, alike=seen))
    assert ("compute.redundant-work" in found) is fires
    if fires:
        finding = found["compute.redundant-work"]
        assert finding.gain is not None
        most = 1 / (1 - share * (3 if learns else 1))
        assert finding.gain.floor < finding.gain.expected < most <= finding.gain.ceiling
        assert "LSTM is given each row several times" in finding.title
        assert [(line.file, line.line) for line in finding.code] == [("serve.py", 55)]
        assert finding.remedy is not None
        assert "repeat_interleave" in (finding.remedy.patch or "")


def test_what_ranks_wait_for_in_the_backward_pass_is_no_part_of_going_back() -> None:
    """A tenth of the step is forward, of alike rows; of the backward pass two tenths are its own, the rest a wait."""
    watched = [run(rank=rank, shares={"forward": 0.1, "backward": 0.85, "other": 0.05}) for rank in range(2)]
    ns = round(0.1 * 4 * watched[0].mean_ns)
    seen = RepeatedWork(
        steps=4, calls=4, again_ns=ns, differentiated_ns=ns, measured_ns=round(4 * watched[0].mean_ns), error=0.005,
        modules=[RepeatedModule("DistributedDataParallel", "train.py", 55, "main", "loss = criterion(net(x), y)", ns)],
    )  # fmt: skip
    gain = found_in_runs(*watched, observed=dict.fromkeys(range(2), Observations(alike=seen)))[
        "compute.redundant-work"
    ].gain
    assert gain is not None
    assert 1.1 < gain.expected <= 1 / (1 - 0.3) <= gain.ceiling < 2.0


def test_a_head_that_nothing_reads_is_worth_its_time_where_what_it_was_made_from_is_worked_on() -> None:
    finding = found_in(scoring(VIEW, POOLED).built)["compute.redundant-work"]
    is_worth(finding, (HEAD_NS + LAYERS_NS) / LAYERS_NS, within=0.01)
    assert "nothing reads" in finding.title


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(scoring(VIEW, reading("aten::mul", [[6, 192], [6, 1]])), id="something else is worked on"),
        pytest.param(scoring(VIEW, reading("aten::argmax", [MADE], "-1"), POOLED), id="it is read, too"),
        pytest.param(
            scoring(VIEW, reading("aten::embedding", [[9000, 192], [6, 96]]), POOLED), id="the next request's"
        ),
    ],
)
def test_heads_that_are_handed_out(job: Job) -> None:
    assert "compute.redundant-work" not in found_in(job.built)


KERNEL: Final = [400, 400]
INVERSE_NS: Final = 20_000_000


def kriging(*products: list[list[int]], size: list[int] = KERNEL, by: str = "aten::linalg_inv_ex") -> Job:
    """Eight steps of other work, a square matrix that is inverted, and forward products of its size."""
    made = Job()
    for _ in made.steps(8):
        with made.inside("aten::mm", **shaped([size[-1], 3], [3, size[-1]])):
            made.python(LAYERS_NS)
        with made.inside(by, **{"Input Dims": [size, []], "Input type": ["float", "Scalar"]}):  # type: ignore[arg-type]
            made.python(INVERSE_NS)
        for dims in products:
            with made.inside("aten::mm" if len(dims[0]) == 2 else "aten::bmm", **shaped(*dims)):
                made.python(10_000)
    return made


@pytest.mark.parametrize(
    ("job", "rows", "columns"),
    [
        pytest.param(kriging([[1, 400], KERNEL]), 400, 1, id="a row"),
        pytest.param(kriging([KERNEL, [400, 20]], [KERNEL, [400, 1]]), 400, 20, id="some columns"),
        pytest.param(kriging([[8, 64, 64], [8, 64, 2]], size=[8, 64, 64]), 64, 2, id="matrices of a batch"),
    ],
)
def test_an_inverse_for_a_few_columns_is_worth_most_of_it(job: Job, rows: int, columns: int) -> None:
    finding = found_in(job.built)["compute.redundant-work"]
    # a factor takes 2/3 n^3 operations and the solution 2 n^2 for each column, where an inverse takes 2 n^3
    left = (2 / 3 * rows + 2 * columns) / (2 * rows)
    is_worth(finding, (INVERSE_NS + LAYERS_NS) / (left * INVERSE_NS + LAYERS_NS), within=0.05)
    assert finding.remedy is not None
    assert "cholesky" in (finding.remedy.patch or "")


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(kriging(), id="nobody knows what for"),
        pytest.param(kriging([[1, 400], KERNEL], [KERNEL, KERNEL]), id="all of it is used"),
        pytest.param(kriging([KERNEL, [400, 300]]), id="many columns"),
        pytest.param(kriging([[1, 400], KERNEL], by="aten::logdet"), id="a determinant alone"),
        pytest.param(kriging([[1, 16], [16, 16]], size=[16, 16]), id="small"),
        pytest.param(kriging([[1, 300], [300, 300]]), id="products of another size"),
        pytest.param(kriging([[1, 400], KERNEL], size=[400]), id="nonsense"),
    ],
)
def test_inverses_that_are_used_or_of_which_nobody_knows(job: Job) -> None:
    found = found_in(job.built).get("compute.redundant-work")
    # where nobody knows what is inverted, the kernel is read by the product alone, which has a better order
    assert found is None or "three matrices" in found.title


def test_checkpointing_is_told_beside_what_it_saves(tmp_path: Path) -> None:
    """The oracle is what autograd itself keeps of the same block without checkpointing, parameters left out."""
    block = torch.nn.Sequential(*(layer for _ in range(6) for layer in (torch.nn.Linear(256, 256), torch.nn.GELU())))
    given = torch.randn(1024, 256, requires_grad=True)
    held: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, torch.nn.Parameter) and tensor.untyped_storage().nbytes() > 1 << 18:
            held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        kept = block(given)
    del kept

    def step() -> None:
        checkpoint(block, given, use_reentrant=False).mean().backward()

    found = told_in(step, tmp_path, lambda found: found.get("compute.redundant-work"))
    (saved,) = [one for one in found.evidence if one.unit == "bytes"]
    assert isinstance(saved.value, int)
    assert saved.value == pytest.approx(sum(held.values()), rel=0.3)


@pytest.mark.parametrize("nested", [True, False])
def test_nested_checkpointing_is_recognised_by_how_often_layers_run(tmp_path: Path, *, nested: bool) -> None:
    """A wrapper's checkpointing around a model that checkpoints itself, as of FSDP around a model of Transformers."""
    layers = (torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.LayerNorm(256))
    block = torch.nn.Sequential(*(layer for _ in range(4) for layer in layers))
    given = torch.randn(1024, 256, requires_grad=True)

    def inner(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = checkpoint(block, x, use_reentrant=True) if nested else block(x)
        return found

    def step() -> None:
        checkpoint(inner, given, use_reentrant=False).mean().backward()

    found = told_in(step, tmp_path, lambda found: found.get("compute.redundant-work"))
    assert found.remedy is not None
    assert ("nested" in found.remedy.text) is nested
    assert ([one.value for one in found.evidence if "runs an operator" in one.what] == [2.0]) is nested


def test_gradients_of_each_sample_are_no_forward_pass_done_again(tmp_path: Path) -> None:
    """``torch.func`` numbers what its backward passes do, and a product of a batch calls what a forward pass calls."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1))
    weights = {name: one.detach() for name, one in model.named_parameters()}

    def loss(held: dict[str, torch.Tensor], given: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.func.functional_call(model, held, (given,))
        return out.square().mean()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
    given = torch.randn(64, 64)
    assert "compute.redundant-work" not in found_in_recording(lambda: each(weights, given), tmp_path)


@pytest.mark.parametrize(
    ("peak_gib", "held_gib", "share"),
    [(30, 10, 1.0), (75.9, 38.1, 0.0), (66, 20, 0.5), (None, 38.1, 1.0)],
)
def test_what_checkpointing_saves_must_fit_beside_the_peak(
    peak_gib: float | None, held_gib: float, share: float
) -> None:
    """A device of 80 GiB, of which tensors can take 76; without memory events nothing is known."""
    gib = 1 << 30
    peaks = [] if peak_gib is None else [SimpleNamespace(device_type="cuda", peak_allocated_bytes=int(peak_gib * gib))]
    rank: Any = SimpleNamespace(
        rank=0,
        on_device=True,
        analysis=SimpleNamespace(memory=peaks),
        trace=SimpleNamespace(metadata=SimpleNamespace(devices=[SimpleNamespace(memory_bytes=80 * gib)])),
    )
    case: Any = SimpleNamespace(runs=())
    assert redundant_work._fits(case, rank, int(held_gib * gib)) == pytest.approx(share, abs=0.01)
