"""The pages of the causes say what the program says."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import whystall.diagnosis.rules
from whystall.diagnosis.causes import causes

DOCS = Path(__file__).parents[1] / "docs"


def test_pages_are_made_from_the_data_that_the_program_uses() -> None:
    spec = importlib.util.spec_from_file_location("make_causes", DOCS / "make_causes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    wanted = module.pages(json.loads((DOCS / "causes" / "examples.json").read_text("utf-8")))
    assert {path.name for path in wanted} == {path.name for path in (DOCS / "causes").glob("*.md")}
    stale = [path.name for path, text in wanted.items() if path.read_text("utf-8") != text]
    assert not stale, "run python docs/make_causes.py"


def test_a_cause_is_said_to_be_found_where_a_rule_names_it_and_only_there() -> None:
    rules = Path(whystall.diagnosis.rules.__file__).parent
    text = "".join(path.read_text("utf-8") for path in rules.glob("*.py"))
    named = {cause.id for cause in causes().values() if f'"{cause.id}"' in text}
    assert {cause.id for cause in causes().values() if cause.found} == named


def test_the_readme_says_how_many_causes_have_rules() -> None:
    found = sum(bool(cause.found) for cause in causes().values())
    assert f"{found} causes have rules" in (DOCS.parent / "README.md").read_text("utf-8")
