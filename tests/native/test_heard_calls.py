"""Calls of one object are told, and neither the object nor its class shows it."""

from __future__ import annotations

import gc
import pickle
import weakref
from typing import Any

import pytest

from whystall._native import HeardCalls, hear_exit


class Model:
    """What is called."""

    def __call__(self, number: int, *, by: int = 2) -> float:
        """Divides."""
        return number / by


def test_calls_of_one_object_are_told() -> None:
    told: list[object] = []
    model, other = Model(), Model()
    before = (pickle.dumps(model), dict(vars(Model)), vars(model))
    heard = HeardCalls(model, lambda given, named: told.append((given, named)), lambda: told.append("over"))
    assert (model(4), other(8), model(6, by=3)) == (2.0, 4.0, 2.0)
    assert told == [((4,), {}), "over", ((6,), {"by": 3}), "over"]
    assert (pickle.dumps(model), dict(vars(Model)), vars(model)) == before
    with pytest.raises(ZeroDivisionError):
        model(1, by=0)
    assert told[4:] == [((1,), {"by": 0})]
    heard.remove()
    heard.remove()
    model(4)
    assert len(told) == 5


def test_what_listeners_raise_is_dropped_and_what_ends_the_program_is_not() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    model = Model()
    heard = HeardCalls(model, lambda *_: 1 / 0, lambda: 1 / 0)
    assert model(4) == 2.0
    heard.remove()
    heard = HeardCalls(model, lambda *_: None, interrupted)
    with pytest.raises(KeyboardInterrupt):
        model(4)
    heard.remove()


def test_a_class_that_follows_and_one_that_is_changed_are_called_as_ever() -> None:
    class Changed(Model):
        pass

    told: list[object] = []
    model = Changed()
    heard = HeardCalls(model, lambda *_: told.append("before"), lambda: None)

    class Further(Changed):
        pass

    assert Further()(4) == 2.0
    assert told == []
    Changed.__call__ = lambda self, number: -number  # type: ignore[assignment,misc]
    assert (model(4), Further()(4)) == (-4, -4)
    heard.remove()
    assert model(4) == -4


def test_a_listener_may_end_the_hearing_and_nothing_is_kept_alive() -> None:
    model = Model()
    heards: list[HeardCalls] = []

    def before(*_: Any) -> None:
        heards.pop().remove()

    heards.append(HeardCalls(model, before, lambda: None))
    assert (model(4), model(4)) == (2.0, 2.0)
    gone = weakref.ref(model)
    HeardCalls(model, before, lambda: None).remove()
    del model
    gc.collect()
    assert gone() is None


def test_what_cannot_be_heard_is_refused() -> None:
    with pytest.raises(TypeError, match="written in Python"):
        HeardCalls(len, lambda *_: None, lambda: None)
    with pytest.raises(TypeError, match="written in Python"):
        HeardCalls(type("Silent", (), {})(), lambda *_: None, lambda: None)
    with pytest.raises(TypeError, match="replaced"):
        hear_exit(lambda _: None, lambda: None)
