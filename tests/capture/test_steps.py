"""Which calls end a step: the optimizer's, else forward passes, else batches, unless the program says so itself."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import pytest

from whystall.capture.rhythm import FORWARDS_BEFORE_STEPS, MOST_IN_REQUEST, Shapes
from whystall.capture.steps import (
    BACKWARDS_BEFORE_STEPS,
    BACKWARDS_IF_UNSURE,
    BATCHES_BEFORE_STEPS,
    FORWARDS_WITHOUT_BACKWARD,
    StepFinder,
)

FIRST, SECOND, THIRD = 1, 2, 3


def times(call: Callable[[], bool], count: int) -> list[bool]:
    return [call() for _ in range(count)]


def a_pass(finder: StepFinder) -> bool:
    return finder.forward_begins(((4, 8),)) or finder.forward_passes()


def test_the_first_optimizer_ends_the_steps() -> None:
    finder = StepFinder()
    assert finder.optimizer_steps(FIRST)
    assert finder.source == "optimizer"
    assert not finder.optimizer_steps(SECOND)
    assert finder.optimizer_steps(FIRST)


def of_several() -> StepFinder:
    finder = StepFinder()
    finder.several_optimizers = lambda: True
    return finder


def steps_of(order: str) -> str:
    """Where steps end when optimizers named by letters step in this order: a bar after each that ends one."""
    finder = of_several()
    return "".join(letter + "|" * finder.optimizer_steps(ord(letter)) for letter in order)


@pytest.mark.parametrize(
    "told",
    [
        "DDGDDG|DDG|DDG|",  # a critic steps twice, then the generator
        "DGDDDDDG|DDDDDG|",  # every fifth time, from the first on
        "GDDG|DDG|",
        "ABAB|AB|AB|",
        "ABCABC|ABC|",
        "AAAAAAAAA|A|A|",  # another was made, and never steps
    ],
)
def test_of_optimizers_that_take_turns_the_rarest_ends_a_step(told: str) -> None:
    assert steps_of(told.replace("|", "")) == told


def test_an_optimizer_of_several_that_steps_no_more_is_given_up() -> None:
    assert steps_of("ABAB|" + "A" * 40).endswith("A|" * 8)


def test_an_optimizer_that_steps_no_more_is_given_up_though_it_stepped_alone() -> None:
    """As in folds whose optimizers are kept: the next one's steps count once the first is surely through."""
    assert steps_of("A" * 30 + "B" * 60).endswith("B|" * 30)
    assert steps_of(("D" * 5 + "G") * 12).count("|") >= 9


def test_an_optimizer_that_is_gone_is_followed_by_the_next_at_once() -> None:
    """As of federated clients, each with an optimizer of its own for ten steps."""
    finder = StepFinder()
    alive: set[int] = set()
    finder.is_alive = alive.__contains__
    told = []
    for client in range(1, 5):
        alive.add(client)
        told += [finder.optimizer_steps(client) for _ in range(10)]
        alive.remove(client)
    assert told == [True] * 40


def passes(shapes: list[Shapes], finder: StepFinder | None = None) -> list[str]:
    """What ends with each of some forward passes: ``begin`` of it, ``end`` of it, or nothing."""
    finder = finder or StepFinder()
    told = []
    for given in shapes:
        begins, ends = finder.forward_begins(given), finder.forward_passes()
        told.append("begin" if begins else "end" if ends else "")
    return told


def test_tokens_of_one_story_are_one_step() -> None:
    stories = [[((1, length + token),) for token in range(6)] for length in (240, 31, 240, 77, 12)]
    told = passes(list(chain(*stories)))
    assert told[12:] == ["", "", "", "", "", ""] + 2 * ["begin", "", "", "", "", ""]


def test_tokens_with_a_cache_are_one_step() -> None:
    stories: list[list[Shapes]] = [[((2, length),), *([((2, 1),)] * 5)] for length in (240, 31, 240, 77, 12)]
    assert passes(list(chain(*stories)))[-12:] == 2 * ["begin", "", "", "", "", ""]


@pytest.mark.parametrize("heard_from", [0, 1, 5, 23])
def test_answers_of_two_dozen_tokens_are_one_step_from_wherever_they_are_heard(heard_from: int) -> None:
    answer: list[Shapes] = [((320, 168, 13),), *([((320, 1, 13),)] * 23)]
    told = passes((answer * 8)[heard_from:])
    assert told[-48:] == 2 * ["begin", *[""] * 23]


def test_passes_of_other_shapes_that_come_again_in_turn_are_one_step() -> None:
    request: list[Shapes] = [((1024, 24),), *([((512, 24),)] * 4), ((452, 24),)]
    told = passes(request * 6)
    assert told[-12:] == 2 * ["begin", "", "", "", "", ""]


@pytest.mark.parametrize(
    "lengths",
    [
        [7 + (step * step) % 31 for step in range(60)],  # sentences of any length
        [16] * 60,
        [8, 9, 8, 8, 9, 9, 9, 8] + [8, 8, 9, 9, 9, 8, 9] * 4,
    ],
)
def test_requests_of_one_pass_are_steps_one_by_one(lengths: list[int]) -> None:
    told = passes([((4, length),) for length in lengths])
    assert told[MOST_IN_REQUEST + 1 :] == ["end"] * len(told[MOST_IN_REQUEST + 1 :])


@pytest.mark.parametrize(
    "batches",
    [
        pytest.param([(8, 1, 8000)] * 30, id="sound of one channel"),
        pytest.param(([(8, 1, 400)] * 9 + [(3, 1, 400)]) * 4, id="epochs of a few batches, the last one smaller"),
    ],
)
def test_batches_of_one_channel_are_steps_at_once(batches: list[tuple[int, ...]]) -> None:
    told = passes([(batch,) for batch in batches])
    assert told[FORWARDS_BEFORE_STEPS + 1 :] == ["end"] * (len(batches) - FORWARDS_BEFORE_STEPS - 1)


def test_of_one_place_each_that_a_loader_hands_out_steps_are_known_at_once() -> None:
    finder, told = StepFinder(), []
    for _ in range(20):
        finder.batch_comes()
        told += passes([((4, 1),)], finder)
    assert told[FORWARDS_BEFORE_STEPS + 1 :] == ["end"] * (19 - FORWARDS_BEFORE_STEPS)


def test_few_requests_of_which_no_two_are_alike_are_steps() -> None:
    told = passes([((4, 8 + 3 * number),) for number in range(12)])
    assert told[FORWARDS_BEFORE_STEPS + 1 :] == ["end"] * (11 - FORWARDS_BEFORE_STEPS)


def test_one_long_answer_among_short_ones_is_one_step() -> None:
    stories = [[((1, 30 + token),) for token in range(count)] for count in (6, 6, 6, 6, 6, 90, 6, 6)]
    told = passes(list(chain(*stories)))
    assert told[-102:] == ["begin", *[""] * 89, *2 * ["begin", "", "", "", "", ""]]


def test_a_very_long_story_is_taken_token_by_token() -> None:
    assert passes([((1, 9 + token),) for token in range(100)])[-60:] == ["end"] * 60


def test_passes_for_one_batch_of_a_loader_are_one_step() -> None:
    finder, told = StepFinder(), []
    for _ in range(8):
        finder.batch_comes()
        told += passes([((4, 8),)] * 3, finder)
    assert told[-6:] == 2 * ["begin", "", ""]


def test_forward_passes_and_batches_of_a_training_job_end_nothing() -> None:
    finder = StepFinder()
    finder.optimizer_steps(FIRST)
    assert not any(times(lambda: a_pass(finder), 2 * FORWARDS_BEFORE_STEPS))
    assert not any(times(finder.batch_comes, 2 * BATCHES_BEFORE_STEPS))
    assert finder.source == "optimizer"


def test_forward_passes_end_steps_once_there_were_enough_without_an_optimizer() -> None:
    finder = StepFinder()
    assert times(lambda: a_pass(finder), FORWARDS_BEFORE_STEPS + 2) == [False] * FORWARDS_BEFORE_STEPS + [True] * 2
    assert finder.source == "forward passes"


def test_batches_end_steps_until_something_better_is_heard_of() -> None:
    finder = StepFinder()
    assert times(finder.batch_comes, BATCHES_BEFORE_STEPS + 1) == [False] * BATCHES_BEFORE_STEPS + [True]
    assert finder.lacks_forward_passes
    assert times(lambda: a_pass(finder), FORWARDS_BEFORE_STEPS + 1)[-1]
    assert not finder.lacks_forward_passes
    assert not finder.batch_comes()
    assert finder.optimizer_steps(FIRST)
    assert not a_pass(finder)
    assert finder.source == "optimizer"


def test_an_optimizer_that_the_scaler_skips_ends_a_step_all_the_same() -> None:
    finder = StepFinder()
    finder.scaler_begins()
    assert not finder.scaler_skips()  # no optimizer has stepped that could be skipped
    finder.scaler_begins()
    assert finder.optimizer_steps(FIRST)
    assert not finder.scaler_skips()  # it has ended the step itself
    finder.scaler_begins()
    assert finder.scaler_skips()


def test_the_programs_word_goes_before_everything() -> None:
    finder = StepFinder()
    finder.optimizer_steps(FIRST)
    assert finder.program_steps()  # the steps begin here
    assert not finder.program_steps()
    assert not finder.optimizer_steps(FIRST)
    assert not any(times(lambda: a_pass(finder), 2 * FORWARDS_BEFORE_STEPS))
    assert not any(times(finder.batch_comes, 2 * BATCHES_BEFORE_STEPS))
    assert finder.source == "calls of step()"


def test_backward_passes_end_steps_where_no_optimizer_was_made() -> None:
    finder = StepFinder()
    assert times(finder.backward_passes, BACKWARDS_BEFORE_STEPS + 1) == [False] * (BACKWARDS_BEFORE_STEPS - 1) + [
        True,
        True,
    ]
    assert finder.source == "backward passes"
    assert not any(times(lambda: a_pass(finder), 8))  # those that the backward passes belong to
    assert finder.optimizer_steps(FIRST)  # it was made by somebody whom nobody heard
    assert not finder.backward_passes()


def test_micro_batches_wait_for_an_optimizer() -> None:
    finder = StepFinder()
    finder.any_optimizer = lambda: True
    assert not any(times(finder.backward_passes, 40))
    unsure = StepFinder()
    unsure.optimizers_unsure = True
    assert times(unsure.backward_passes, BACKWARDS_IF_UNSURE).count(True) == 1


def test_a_job_that_trains_by_hand_and_serves_then_steps_by_forward_passes() -> None:
    finder = StepFinder()
    assert times(finder.backward_passes, 40)[-1]
    assert times(lambda: a_pass(finder), FORWARDS_WITHOUT_BACKWARD + FORWARDS_BEFORE_STEPS + 4)[-1]
    assert finder.source == "forward passes"
