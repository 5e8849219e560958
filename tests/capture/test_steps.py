"""Which calls end a step: the optimizer's, else forward passes, else batches, unless the program says so itself."""

from __future__ import annotations

from collections.abc import Callable

from whystall.capture.steps import BATCHES_BEFORE_STEPS, FORWARDS_BEFORE_STEPS, StepFinder

FIRST, SECOND = 1, 2


def times(call: Callable[[], bool], count: int) -> list[bool]:
    return [call() for _ in range(count)]


def test_the_first_optimizer_ends_the_steps() -> None:
    finder = StepFinder()
    assert finder.optimizer_steps(FIRST)
    assert finder.source == "optimizer"
    assert not finder.optimizer_steps(SECOND)
    assert finder.optimizer_steps(FIRST)


def test_forward_passes_and_batches_of_a_training_job_end_nothing() -> None:
    finder = StepFinder()
    finder.optimizer_steps(FIRST)
    assert not any(times(finder.forward_passes, 2 * FORWARDS_BEFORE_STEPS))
    assert not any(times(finder.batch_comes, 2 * BATCHES_BEFORE_STEPS))
    assert finder.source == "optimizer"


def test_forward_passes_end_steps_once_there_were_enough_without_an_optimizer() -> None:
    finder = StepFinder()
    assert times(finder.forward_passes, FORWARDS_BEFORE_STEPS + 2) == [False] * FORWARDS_BEFORE_STEPS + [True] * 2
    assert finder.source == "forward passes"


def test_batches_end_steps_until_something_better_is_heard_of() -> None:
    finder = StepFinder()
    assert times(finder.batch_comes, BATCHES_BEFORE_STEPS + 1) == [False] * BATCHES_BEFORE_STEPS + [True]
    assert finder.lacks_forward_passes
    assert times(finder.forward_passes, FORWARDS_BEFORE_STEPS + 1)[-1]
    assert not finder.lacks_forward_passes
    assert not finder.batch_comes()
    assert finder.optimizer_steps(FIRST)
    assert not finder.forward_passes()
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
    assert not any(times(finder.forward_passes, 2 * FORWARDS_BEFORE_STEPS))
    assert not any(times(finder.batch_comes, 2 * BATCHES_BEFORE_STEPS))
    assert finder.source == "calls of step()"
