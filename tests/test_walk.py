"""The way from a trace to a finding that CONTRIBUTING.md describes, and the files that an addition takes."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import reduce
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import msgspec
import pytest

import whystall
from whystall.cli._main import main
from whystall.cli.registry import VERBS
from whystall.diagnosis.rewrites import REWRITES
from whystall.diagnosis.rules import RULES
from whystall.diagnosis.run_facts import RunFacts
from whystall.report.sections.registry import SECTIONS
from whystall.run_folder.facts import RankFacts
from whystall.run_folder.observations import Observations
from whystall.trace.readers.registry import READERS

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src" / "whystall"
STOP: Final = re.compile(r"(?m)^\d+\. `(whystall[\w.]+)`")


def function(name: str) -> Any:
    """The function of a full name, be it in a class."""
    words = name.split(".")
    for count in range(len(words) - 1, 0, -1):
        try:
            module = import_module(".".join(words[:count]))
        except ModuleNotFoundError:
            continue
        return reduce(getattr, words[count:], module)
    raise AssertionError(name)


def test_a_trace_goes_through_the_rooms_once_in_the_order_described(tmp_path: Path) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    stops = STOP.findall(text.partition("## From a trace to a finding")[2].partition("\n## ")[0])
    assert len(stops) >= 8
    code: dict[CodeType, str] = {function(name).__code__: name for name in stops}
    passed: list[str] = []

    def follow(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code in code:
            passed.append(code[frame.f_code])

    page = tmp_path / "report.html"
    before = sys.getprofile()
    sys.setprofile(follow)
    try:
        assert main(["analyze", str(whystall.demo_recording()), "--no-cache", "--quiet", "-o", str(page)]) == 0
    finally:
        sys.setprofile(before)
    assert passed == stops
    assert page.is_file()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.cause.id)
def test_a_cause_is_a_rule_with_its_entry_beside_it(rule: Any) -> None:
    family, _, name = rule.cause.id.partition(".")
    beside = SOURCE / "diagnosis" / "rules" / family / name.replace("-", "_")
    assert beside.with_suffix(".py").is_file()
    assert beside.with_suffix(".toml").is_file()


def test_a_cheaper_form_is_a_function_of_its_room() -> None:
    assert {Path(inspect.getfile(one.match)).parent for one in REWRITES} == {SOURCE / "diagnosis" / "rewrites"}


@pytest.mark.parametrize("name", [field.name for field in msgspec.structs.fields(Observations)])
def test_an_observation_is_declared_once_made_by_a_look_and_asked_for_by_a_rule(name: str) -> None:
    assert name not in {field.name for field in msgspec.structs.fields(RankFacts)}
    assert name not in {field.name for field in fields(RunFacts)}
    word = re.compile(rf"\b{name}\b")
    for room in ("capture", "diagnosis"):
        assert any(word.search(path.read_text("utf-8")) for path in (SOURCE / room).rglob("*.py")), room


def test_readers_sections_and_verbs_stand_in_their_rooms() -> None:
    def of(things: list[Any], room: Path) -> bool:
        return all(room in Path(inspect.getfile(one)).parents for one in things)

    builders: list[Callable[..., Any]] = [one.build for one in SECTIONS]
    assert of([type(reader) for reader in READERS], SOURCE / "trace" / "readers")
    assert of(builders, SOURCE / "report")
    assert all((SOURCE / "cli" / f"{verb.name}.py").is_file() for verb in VERBS)
