"""What a rank holds under tensor, sequence, pipeline and expert parallelism, beside the formulas of papers.

Formulas are those of Korthikanti et al. (arXiv 2205.05198), written down here and not taken from the package: for
s = 2048, b = 1, h = 12288, a = 96 in 16 bits, in units of s b h bytes for one block.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from whystall.errors import InputError, UsageError
from whystall.model.prediction.predict import predict
from whystall.model.prediction.results import Prediction
from whystall.model.prediction.simulator import Simulator
from whystall.report.format import duration, size
from whystall.report.prediction_text import render_prediction

H100 = "NVIDIA H100 80GB HBM3"
S, H, A = 2048, 12288, 96
UNIT = S * H
SCORES = 5 * A * S / H  # 80


def kept(found: Prediction) -> int:
    return found.phase("forward").held["activations"]


def of_one_block(simulator: Simulator, models: str, kind: str, **options: Any) -> float:
    """What a further block keeps, in units of s b h bytes."""
    each = [
        predict(f"{models}:{kind}_{count}", simulator=simulator, dtype="bf16", device=H100, optimizer=None, **options)
        for count in (6, 8)
    ]
    return (kept(each[1]) - kept(each[0])) / 2 / UNIT


@pytest.mark.parametrize(
    ("options", "formula"),
    [
        ({}, 34 + SCORES),
        ({"tensor_parallel": 8}, 10 + 24 / 8 + SCORES / 8),  # 23
        ({"tensor_parallel": 2}, 10 + 24 / 2 + SCORES / 2),
        ({"tensor_parallel": 8, "sequence_parallel": True}, (34 + SCORES) / 8),  # 14.25
        ({"checkpoint": "full", "tensor_parallel": 8}, 2),
    ],
)
def test_activations_of_the_papers_block(
    simulator: Simulator, models: str, options: dict[str, Any], formula: float
) -> None:
    assert of_one_block(simulator, models, "paper", **options) == pytest.approx(formula, rel=0.001)


@pytest.mark.parametrize(
    ("options", "formula"),
    [({"tensor_parallel": 8}, 10 + 24 / 8), ({"tensor_parallel": 8, "sequence_parallel": True}, 34 / 8)],  # 4.25
)
def test_activations_where_scores_are_not_kept(
    simulator: Simulator, models: str, options: dict[str, Any], formula: float
) -> None:
    """One attention kernel is what selective recomputation leaves; it has no dropout here (1 / t of s b h less is
    nothing: the mask is that of scores), and keeps a number in 32 bits a head and row."""
    sums = 4 * A * S / 8 / UNIT

    assert of_one_block(simulator, models, "flash", **options) == pytest.approx(formula + sums, rel=0.001)


def test_weights_and_their_state_are_divided_by_tensor_parallelism(simulator: Simulator, models: str) -> None:
    """Of a block 12 h^2 + 7 h of weights and biases of columns are split, 6 h of the others are not."""
    found = predict(f"{models}:paper_6", simulator=simulator, dtype="bf16", device=H100, tensor_parallel=8)
    held = found.phase("optimizer").held
    a_rank = 6 * ((12 * H * H + 7 * H) // 8 + 6 * H)

    assert held["parameters"] == held["gradients"] == pytest.approx(2 * a_rank, rel=1e-6)
    assert held["optimizer state"] == pytest.approx(4 * a_rank, rel=1e-5)  # and a count of steps for each
    assert found.parameters == 6 * (12 * H * H + 13 * H)


def test_the_work_of_products_is_shared(simulator: Simulator, models: str) -> None:
    whole, shared = (
        predict(f"{models}:flash_6", simulator=simulator, dtype="bf16", device=H100, optimizer=None, tensor_parallel=t)
        for t in (1, 8)
    )
    assert shared.flops == pytest.approx(whole.flops / 8, rel=0.001)


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("ranks", [2, 8])
def test_each_block_reduces_what_it_is_given_four_times(
    simulator: Simulator, models: str, ranks: int, *, sequence: bool
) -> None:
    """Shoeybi et al.: two all-reduces of s b h forward, two backward, by rings 2 (t - 1) / t each."""
    sent = [
        predict(
            f"{models}:{kind}",
            simulator=simulator,
            dtype="bf16",
            device=H100,
            optimizer=None,
            tensor_parallel=ranks,
            sequence_parallel=sequence,
        ).tensor_parallel_bytes
        for kind in ("paper_6", "paper_8")
    ]
    of_a_block = 4 * (2 * UNIT) * 2 * (ranks - 1) / ranks

    assert (sent[1] - sent[0]) / 2 == of_a_block
    # The first block's first input is no tensor that anybody wants the gradient of.
    assert sent[0] in {6 * of_a_block, 6 * of_a_block - of_a_block / 4}


def test_what_is_sent_is_told_with_the_time_that_the_link_takes(simulator: Simulator, models: str) -> None:
    """Of NVLink 4: 450 GB/s each way (NVIDIA's data sheet of the H100)."""
    found = predict(f"{models}:shallow", simulator=simulator, device=H100, tensor_parallel=2)
    at_least_ns = found.tensor_parallel_bytes / 450
    (said,) = (line for line in render_prediction(found, width=200).splitlines() if line.startswith("A rank sends"))
    assert said == (
        f"A rank sends {size(found.tensor_parallel_bytes)} in a step, at least, to those that share its products, "
        f"which takes the device's own link {duration(round(at_least_ns))} or more."
    )


def test_without_tensor_parallelism_nothing_is_sent_for_it(simulator: Simulator, models: str) -> None:
    assert predict(f"{models}:shallow", simulator=simulator).tensor_parallel_bytes == 0


def test_words_and_the_head_are_split_by_vocabulary(simulator: Simulator, models: str) -> None:
    whole = predict(f"{models}:shallow", simulator=simulator)
    split = predict(f"{models}:shallow", simulator=simulator, tensor_parallel=4)
    of_all_ranks = 2 * (2 * 64 + 64 + 64)  # of each of two blocks: a normalisation, the biases of products by rows

    assert split.phase("forward").held["parameters"] == 4 * ((whole.parameters - of_all_ranks) // 4 + of_all_ranks)


@pytest.fixture(scope="module")
def pipeline(simulator: Simulator, models: str) -> dict[int, Prediction]:
    options: dict[str, Any] = {"simulator": simulator, "dtype": "bf16", "device": H100, "optimizer": None}
    return {
        batches: predict(f"{models}:paper_8", pipeline_parallel=4, micro_batches=batches, **options)
        for batches in (1, 2, 8)
    }


def test_the_first_stage_of_a_pipeline_keeps_as_much_as_the_whole_model(pipeline: dict[int, Prediction]) -> None:
    """s b h L (34 + 5 a s / h): of L / p blocks p batches."""
    held = pipeline[8].phase("forward").held  # the first block's input is the model's

    assert (held["activations"] + held["inputs"]) / UNIT == pytest.approx(8 * (34 + SCORES), rel=0.001)


def test_fewer_batches_than_stages_keep_less(pipeline: dict[int, Prediction]) -> None:
    held = pipeline[2].phase("forward").held

    assert (held["activations"] + held["inputs"]) / UNIT == pytest.approx(2 * 2 * (34 + SCORES), rel=0.001)
    assert "gradients" in pipeline[2].phase("forward").held
    assert "gradients" not in pipeline[1].phase("forward").held


def test_a_stage_waits_as_long_as_the_schedule_says(pipeline: dict[int, Prediction]) -> None:
    """Four stages: 3 of 1 + 3, 2 + 3 and 8 + 3 parts, counted along a plan of one forward, one backward in turn."""
    for batches, found in pipeline.items():
        assert found.bubble_share() == pytest.approx(1 - batches / _length_of_1f1b(4, batches))


def _length_of_1f1b(stages: int, batches: int) -> float:
    """The time that a schedule takes, in times of a batch on a stage (a third forward, two thirds backward)."""
    done: dict[tuple[str, int, int], float] = {}
    order = []
    for stage in range(stages):
        ahead = min(stages - stage - 1, batches)
        plan = [("f", number) for number in range(ahead)]
        for number in range(batches - ahead):
            plan += [("f", ahead + number), ("b", number)]
        order.append(plan + [("b", number) for number in range(batches - ahead, batches)])
    at, free = [0] * stages, [0.0] * stages
    while any(at[stage] < len(order[stage]) for stage in range(stages)):
        for stage in range(stages):
            while at[stage] < len(order[stage]):
                kind, number = order[stage][at[stage]]
                before = (kind, stage - 1 if kind == "f" else stage + 1, number)
                needs = 0 <= before[1] < stages
                if needs and before not in done:
                    break
                free[stage] = max(free[stage], done.get(before, 0.0)) + (1 / 3 if kind == "f" else 2 / 3)
                done[kind, stage, number] = free[stage]
                at[stage] += 1
    return max(free)


def test_stages_hold_less_towards_the_end(pipeline: dict[int, Prediction]) -> None:
    stages = pipeline[8].stages
    batch_of_a_stage = 2 * (34 + SCORES) * UNIT

    assert len(stages) == 4
    assert pipeline[8].peak_bytes == max(stages)
    assert [high - low for high, low in pairwise(stages[1:])] == pytest.approx([batch_of_a_stage] * 2, rel=0.03)


def test_what_stands_before_and_behind_the_blocks_is_of_the_first_and_last_stage(
    simulator: Simulator, models: str
) -> None:
    found = predict(f"{models}:deep", simulator=simulator, pipeline_parallel=3, micro_batches=1, optimizer="sgd")
    table = 256 * 64 * 4

    blocks = (found.parameters - 2 * 256 * 64) // 9 * 3 * 4  # of the three of a stage, in bytes
    assert found.stages[1] < min(found.stages[0], found.stages[2])
    assert found.phase("optimizer").held["parameters"] == blocks + table


@pytest.mark.parametrize("name", ["experts", "stacked_experts"])
def test_experts_are_spread_and_their_activations_are_not(simulator: Simulator, models: str, name: str) -> None:
    whole, spread = (
        predict(f"{models}:{name}", simulator=simulator, ranks=4, strategy="ddp", expert_parallel=e) for e in (1, 4)
    )
    of_experts, others = 2 * 4 * 64 * 64 * 4, 2 * 2 * 64 * 4

    held = spread.phase("optimizer").held
    assert whole.phase("optimizer").held["parameters"] == of_experts + others
    assert held["parameters"] == held["gradients"] == held["communication"] == of_experts // 4 + others
    assert held["optimizer state"] == pytest.approx(2 * (of_experts // 4 + others), rel=0.01)
    assert kept(spread) == kept(whole)


def test_a_stage_of_zero_divides_the_state_of_experts_once(simulator: Simulator, models: str) -> None:
    plain, spread = (
        predict(f"{models}:experts", simulator=simulator, ranks=4, strategy="zero1", expert_parallel=e) for e in (1, 4)
    )
    assert spread.phase("backward").held["optimizer state"] == plain.phase("backward").held["optimizer state"]
    assert spread.phase("backward").held["parameters"] < plain.phase("backward").held["parameters"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sequence_parallel": True}, "add --tensor-parallel"),
        ({"micro_batches": 4}, "add --pipeline-parallel"),
        ({"expert_parallel": 4}, "add --ranks 4 --strategy ddp"),
        ({"tensor_parallel": 0}, "at least 1"),
        ({"ranks": 2, "strategy": "fsdp2", "tensor_parallel": 2}, "take --strategy zero3"),
    ],
)
def test_kinds_that_do_not_go_together_are_said(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        predict("models.py:deep", **options)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("deep", {"pipeline_parallel": 2}, "9 repeated blocks cannot be shared evenly by 2 stages"),
        ("square", {"pipeline_parallel": 2}, "0 repeated blocks"),
        ("deep", {"ranks": 2, "strategy": "ddp", "expert_parallel": 2}, "no experts were found"),
    ],
)
def test_models_that_cannot_be_shared_so_are_said(
    simulator: Simulator, models: str, name: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises((UsageError, InputError), match=said):
        predict(f"{models}:{name}", simulator=simulator, **options)
