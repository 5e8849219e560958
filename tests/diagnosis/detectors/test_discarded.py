"""Gradients that nothing reads: those of what a loss should not have reached fire compute.redundant-work.

Gradients that are added up, and those on the way to others, do not.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import Job, is_worth, shaped

LAYER_NS: Final = 2_000_000
CRITIC: Final = ([256, 784], [1, 256])
GENERATOR: Final = ([784, 1024], [1024, 64])


class Training:
    """What a CPU does for networks of linear layers, as a profiler with shapes records it."""

    def __init__(self) -> None:
        self.job = Job()
        self._number = 0

    def works(self, name: str, lasts: int, **more: Any) -> None:
        with self.job.inside(name, **more):
            self.job.python(lasts)

    def forward(self) -> None:
        self._number += 1
        self.works("aten::gelu", LAYER_NS, **{"Sequence number": self._number, "Fwd thread id": 0})

    def backward(self, *layers: list[int], onto: bool = False, biases: bool = False) -> None:
        """From a loss through layers, perhaps with ``biases``; ``onto`` gradients that are there already."""
        self.node("MseLossBackward0", [])
        for shape in layers:
            self.node("AddmmBackward0", [128, shape[0]], lasts=LAYER_NS)
            if biases:
                self.adds([shape[0]], onto=onto)
                self.node("TBackward0", shape)
            self.adds(shape, onto=onto)

    def adds(self, shape: list[int], *, onto: bool = False) -> None:
        """Adds a gradient of this shape."""
        with (
            self.job.inside("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"),
            self.job.inside("torch::autograd::AccumulateGrad", **shaped(shape)),
        ):
            self.works("aten::add_" if onto else "aten::detach", 1_000, **shaped(shape))

    def node(self, name: str, gradient: list[int], lasts: int = 1_000) -> None:
        numbers = {"Sequence number": self._number, "Fwd thread id": 1}
        with self.job.inside(f"autograd::engine::evaluate_function: {name}", **numbers):
            self.works(name, lasts, **numbers, **shaped(gradient))

    def optimizer(self, *layers: list[int]) -> None:
        with self.job.marked("Optimizer.step#SGD.step"):
            for shape in layers:
                self.works("aten::add_", 50_000, **shaped(shape, shape))


def test_a_generator_that_the_critics_loss_reaches_is_worked_through_for_nothing() -> None:
    made = Training()
    for _ in made.job.steps(6):
        for _ in range(4):
            made.forward()
        made.backward(*CRITIC, *GENERATOR)
        made.optimizer(*CRITIC)
        for _ in range(4):
            made.forward()
        made.backward(*CRITIC, *GENERATOR)
        made.optimizer(*GENERATOR)
    finding = found_in(made.job.built)["compute.redundant-work"]
    assert "nothing reads" in finding.title
    assert finding.remedy is not None
    assert "detach" in finding.remedy.text
    is_worth(finding, 16 / 14)


def test_a_shape_that_both_have_hides_nothing_where_the_critics_optimizer_reads_one() -> None:
    """The generator's second layer has the shape of one that the critic's optimizer reads, and two are made."""
    generator = (GENERATOR[0], CRITIC[1], GENERATOR[1], [64, 32], [32, 8])
    made = Training()
    for _ in made.job.steps(6):
        for _ in range(4):
            made.forward()
        made.backward(*CRITIC, *generator)
        made.optimizer(*CRITIC)
        for _ in range(4):
            made.forward()
        made.backward(*CRITIC, *generator)
        made.optimizer(*generator)
    is_worth(found_in(made.job.built)["compute.redundant-work"], 22 / 17)


def test_biases_as_long_as_the_critics_hide_nothing_of_a_layer_that_is_lost() -> None:
    """The last of the generator's layers has a bias of 256 numbers, as the critic's first has."""
    generator = ([784, 1024], [1024, 64], [256, 32])
    made = Training()
    for _ in made.job.steps(6):
        for optimized in (CRITIC, generator):
            for _ in range(4):
                made.forward()
            made.backward(*CRITIC, *generator, biases=True)
            made.optimizer(*optimized, *([shape[0]] for shape in optimized))
    is_worth(found_in(made.job.built)["compute.redundant-work"], 18 / 15)


def test_a_norm_that_is_trained_before_a_layer_that_is_not_is_needed() -> None:
    """Only the norm is tuned: the gradient of the layer after it is lost, and its own is not."""
    made = Training()
    for _ in made.job.steps(6):
        made.forward()
        made.backward(CRITIC[0])
        made.node("NativeLayerNormBackward0", [128, 784], lasts=LAYER_NS)
        made.adds([784])
        made.optimizer([784])
    assert "compute.redundant-work" not in found_in(made.job.built)


def test_gradients_of_a_critic_on_the_way_to_the_generator_are_needed() -> None:
    made = Training()
    for _ in made.job.steps(6):
        for _ in range(2):
            made.forward()
        made.backward(*CRITIC)  # the generator's output is detached
        made.optimizer(*CRITIC)
        for _ in range(4):
            made.forward()
        made.backward(*CRITIC, *GENERATOR)
        made.optimizer(*GENERATOR)
    assert "compute.redundant-work" not in found_in(made.job.built)


def test_gradients_that_are_added_up_are_read_at_last() -> None:
    made = Training()
    for _ in made.job.steps(6):
        for micro in range(4):
            for _ in range(4):
                made.forward()
            made.backward(*CRITIC, *GENERATOR, onto=micro > 0)
        made.optimizer(*CRITIC, *GENERATOR)
    assert "compute.redundant-work" not in found_in(made.job.built)


def test_of_an_optimizer_that_tells_no_shapes_nothing_is_said() -> None:
    made = Training()
    for _ in made.job.steps(6):
        for _ in range(4):
            made.forward()
        made.backward(*CRITIC, *GENERATOR)
        with made.job.marked("Optimizer.step#AdamW.step"):
            made.works("CompiledFxGraph", 50_000)
    assert "compute.redundant-work" not in found_in(made.job.built)


def test_what_an_optimizer_is_given_in_a_list_may_be_any_gradient() -> None:
    made = Training()
    for _ in made.job.steps(6):
        for _ in range(4):
            made.forward()
        made.backward(*CRITIC, *GENERATOR)
        with made.job.marked("Optimizer.step#AdamW.step"):
            lists = {"Input Dims": [[], [], []], "Input type": ["TensorList", "TensorList", "Scalar"]}
            made.works("aten::_fused_adamw_", 50_000, **lists)
    assert "compute.redundant-work" not in found_in(made.job.built)


def test_layers_that_a_backward_pass_computes_again_are_of_that_pass() -> None:
    """As activation checkpointing does, layer by layer: the gradients wait for one optimizer."""
    made = Training()
    for _ in made.job.steps(6):
        made.forward()
        made.node("MseLossBackward0", [])
        for _ in range(4):
            numbers = {"Sequence number": made._number, "Fwd thread id": 1}
            with made.job.inside("autograd::engine::evaluate_function: AddmmBackward0", **numbers):
                made.forward()  # again
                made.works("AddmmBackward0", LAYER_NS, **numbers, **shaped([128, 64]))
            with (
                made.job.inside("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"),
                made.job.inside("torch::autograd::AccumulateGrad", **shaped(STUDENT)),
            ):
                made.works("aten::detach", 1_000, **shaped(STUDENT))
        with made.job.marked("Optimizer.step#AdamW.step"):
            lists = {"Input Dims": [[], [], []], "Input type": ["TensorList", "TensorList", "Scalar"]}
            made.works("aten::_fused_adamw_", 50_000, **lists)
    finding = found_in(made.job.built)["compute.redundant-work"]
    assert "done again" in finding.title
    is_worth(finding, 18 / 10)


def test_an_optimizer_that_tells_the_shapes_of_its_lists_reads_no_others() -> None:
    made = Training()
    for _ in made.job.steps(6):
        for of in (CRITIC, GENERATOR):
            for _ in range(4):
                made.forward()
            made.backward(*CRITIC, *GENERATOR)
            with made.job.marked("Optimizer.step#AdamW.step"):
                lists = {"Input Dims": [[*of], [*of], []], "Input type": ["TensorList", "TensorList", "Scalar"]}
                made.works("aten::_fused_adamw_", 50_000, **lists)
    is_worth(found_in(made.job.built)["compute.redundant-work"], 16 / 14)


def test_layers_that_no_optimizer_steps_are_worked_through_for_nothing() -> None:
    made = Training()
    for _ in made.job.steps(6):
        for _ in range(4):
            made.forward()
        made.backward(*CRITIC, *GENERATOR, onto=True)
        made.optimizer(*CRITIC)
    is_worth(found_in(made.job.built)["compute.redundant-work"], 8 / 6)


@pytest.mark.parametrize(("kind", "gone"), [("long int", True), ("float", False)])
def test_labels_as_many_as_a_layer_has_biases_are_no_reader_of_gradients(kind: str, *, gone: bool) -> None:
    """A backbone under a head that is trained: its last gradients, of sixteen biases, and batches of sixteen labels."""
    made = Training()
    for _ in made.job.steps(6):
        given = {"Input Dims": [[1024], [16]], "Input type": [kind, kind]}
        made.works("aten::index_select", 10_000, **given)
        for _ in range(4):
            made.forward()
        made.backward([256, 784], [1, 256], *GENERATOR, [16])
        made.optimizer(*CRITIC)
    found = found_in(made.job.built).get("compute.redundant-work")
    assert (found is not None) is gone
    if found is not None:
        is_worth(found, 9 / 6)


STUDENT: Final = [64, 256]


def test_gradients_that_pile_up_beside_the_optimizers_are_nobodys() -> None:
    """A teacher's layer of the student's shape: one gradient is handed over in each step, the other is added to."""
    made = Training()
    for _ in made.job.steps(6):
        made.forward()
        made.node("MseLossBackward0", [])
        for onto in (False, True):
            made.node("AddmmBackward0", [128, 256], lasts=LAYER_NS)
            with (
                made.job.inside("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"),
                made.job.inside("torch::autograd::AccumulateGrad", **shaped(STUDENT)),
            ):
                made.works("aten::add_" if onto else "aten::detach", 1_000, **shaped(STUDENT))
        made.optimizer(STUDENT)
    finding = found_in(made.job.built)["compute.redundant-work"]
    is_worth(finding, made.job.step_ns / (made.job.step_ns - LAYER_NS))


def test_gradients_of_micro_batches_are_added_up_for_the_optimizer() -> None:
    made = Training()
    for _ in made.job.steps(6):
        for onto in (False, True):
            made.forward()
            made.backward(STUDENT, STUDENT, onto=onto)
        made.optimizer(STUDENT, STUDENT)
    assert "compute.redundant-work" not in found_in(made.job.built)


ATOMS: Final = [216, 3]
WIDE: Final = [512, 500]


def forces(*, reads: bool = True, onto: bool = True, steps: bool = False, convolution: bool = False) -> Training:
    """Energies whose gradient by positions is wanted; those of the weights come along."""
    made = Training()
    for _ in made.job.steps(6):
        made.forward()
        made.node("SumBackward0", [])
        numbers = {"Sequence number": made._number, "Fwd thread id": 1}
        name = "ConvolutionBackward0" if convolution else "AddmmBackward0"
        with made.job.inside(f"autograd::engine::evaluate_function: {name}", **numbers):
            if convolution:
                made.works("aten::convolution_backward", 2 * LAYER_NS, **shaped([8, 512, 9, 9], [8, 500, 9, 9], WIDE))
            else:
                made.works("aten::mm", LAYER_NS, **shaped([216, 512], [512, 500]))
                made.works("aten::mm", LAYER_NS, **shaped([512, 216], [216, 500]))
        made.node("TBackward0", WIDE)
        for shape, adds in ((WIDE, onto), (ATOMS, False)):
            if shape == ATOMS:
                made.node("IndexBackward0", [100, 3], lasts=LAYER_NS)
            with (
                made.job.inside("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"),
                made.job.inside("torch::autograd::AccumulateGrad", **shaped(shape)),
            ):
                made.works("aten::add_" if adds else "aten::detach", 1_000, **shaped(shape))
        if reads:
            made.works("aten::neg", 1_000, **shaped(ATOMS))
        if steps:
            made.optimizer(WIDE)
    return made


def test_gradients_of_weights_beside_those_of_inputs_are_half_of_the_products() -> None:
    made = forces()
    is_worth(found_in(made.job.built)["compute.redundant-work"], made.job.step_ns / (made.job.step_ns - LAYER_NS))


def test_of_a_convolution_half_of_its_backward_pass_is_left() -> None:
    made = forces(convolution=True)
    is_worth(found_in(made.job.built)["compute.redundant-work"], made.job.step_ns / (made.job.step_ns - LAYER_NS))


@pytest.mark.parametrize(
    "made",
    [
        forces(reads=False),  # micro-batches of which the optimizer's step is not recorded
        forces(onto=False),  # dropped after each pass, by whoever has looked at them
        forces(steps=True),
    ],
)
def test_gradients_of_weights_that_may_be_read_are_needed(made: Training) -> None:
    assert "compute.redundant-work" not in found_in(made.job.built)


VISION: Final = ([96, 96],) * 6
HEAD: Final = ([10, 96], [96, 96])


def probing(*order: list[int], head: tuple[list[int], ...] = HEAD, steps: int = 6) -> Training:
    """Steps whose backward pass goes through layers in this order, and whose optimizer has a head of them."""
    made = Training()
    for _ in made.job.steps(steps):
        for _ in order:
            made.forward()
        made.backward(*order)
        made.optimizer(*head)
    return made


def test_layers_beyond_a_head_are_lost_though_the_head_has_one_of_their_shape() -> None:
    """Eight layers forward and back; the optimizer has the last two, one of them of the shape that all others have."""
    finding = found_in(probing(*HEAD, *VISION).job.built)["compute.redundant-work"]
    is_worth(finding, 16 / 10)


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(probing([10, 96], *VISION, [96, 96], head=([10, 96], *VISION, [96, 96])), id="all are trained"),
        pytest.param(probing(*VISION, [10, 96], head=([10, 96], [96, 96])), id="the first layers are trained"),
        pytest.param(probing(*HEAD, *VISION, steps=1), id="one step tells nothing"),
        pytest.param(probing(*HEAD, *HEAD, *HEAD), id="the same layers thrice: their gradients are summed"),
    ],
)
def test_other_heads_are_not_told(made: Training) -> None:
    assert "compute.redundant-work" not in found_in(made.job.built)


def test_an_optimizer_of_kernels_of_its_own_tells_nothing_of_what_it_reads() -> None:
    """Apex's and others' give operators of torch's nothing but their counts of steps."""
    made = Training()
    for _ in made.job.steps(6):
        for optimized in (CRITIC, ()):
            for _ in range(4):
                made.forward()
            made.backward(*CRITIC, *GENERATOR)
            made.works("aten::mul_", 10_000, **shaped(CRITIC[0]))  # something that has the sizes of one of them
            made.optimizer(*([] for _ in optimized))
    assert "compute.redundant-work" not in found_in(made.job.built)
