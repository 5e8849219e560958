"""What other packages bring by entry points: found in order of name, and harmless where it is broken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from whystall import plugins
from whystall.plugins import brought


@dataclass
class Entry:
    name: str
    brings: Any

    def load(self) -> Any:
        if isinstance(self.brings, Exception):
            raise self.brings
        return self.brings


def given(monkeypatch: pytest.MonkeyPatch, *entries: Entry) -> tuple[list[Any], list[str]]:
    monkeypatch.setattr(plugins, "entry_points", lambda *, group: list(entries) if group == "whystall.things" else [])
    return brought("whystall.things", str, "things")


def test_one_object_or_several_in_order_of_the_entries_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert given(monkeypatch, Entry("b", ("two", "three")), Entry("a", "one")) == (["one", "two", "three"], [])


def test_what_cannot_be_loaded_costs_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    found, failures = given(monkeypatch, Entry("bad", ImportError("no module")), Entry("good", "one"))
    assert found == ["one"]
    assert failures == ["the things of bad could not be loaded: no module"]


@pytest.mark.parametrize("wrong", [5, [5, "one"], None])
def test_what_is_of_another_kind_is_left_out_with_a_sentence(monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    found, (failure,) = given(monkeypatch, Entry("odd", wrong))
    assert found == (["one"] if isinstance(wrong, list) else [])
    assert failure.startswith("the things of odd ")
