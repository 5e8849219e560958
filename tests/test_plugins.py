"""What other packages bring by entry points: found in order of name, and harmless where it is broken."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
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


def test_a_package_that_is_installed_meanwhile_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    assert brought("whystall.things", str, "things") == ([], [])
    (tmp_path / "things.py").write_text("THING = 'one'\n")
    package = tmp_path / "things-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Name: things\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[whystall.things]\nfirst = things:THING\n")
    assert brought("whystall.things", str, "things") == (["one"], [])


def test_packages_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    brought("whystall.things", str, "things")
    monkeypatch.setattr("importlib.metadata.entry_points", None)
    assert brought("whystall.things", str, "things") == ([], [])
