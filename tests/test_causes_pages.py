"""From a cause's id a reader finds its code, its entry, its page and its test, and the pages are current."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from whystall.cli._main import main
from whystall.diagnosis.catalogue import causes
from whystall.diagnosis.detectors.job_lines import Long
from whystall.diagnosis.rule import Rule
from whystall.diagnosis.rules import RULES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
RULE_FILES = ROOT / "src" / "whystall" / "diagnosis" / "rules"
RULE_TESTS = ROOT / "tests" / "diagnosis" / "rules"


def pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_causes", DOCS / "make_causes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_are_made_from_the_data_that_the_program_uses() -> None:
    wanted = pages().pages(json.loads((DOCS / "causes" / "examples.json").read_text("utf-8")))
    assert {path.name for path in wanted} == {path.name for path in (DOCS / "causes").glob("*.md")}
    stale = [path.name for path, text in wanted.items() if path.read_text("utf-8") != text]
    assert not stale, "run python docs/make_causes.py"


def named_alike(cause: str) -> tuple[str, str]:
    """The family and the file name of a cause."""
    family, _, name = cause.partition(".")
    return family, name.replace("-", "_")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.cause.id)
def test_a_cause_is_found_by_its_name_everywhere(rule: Rule) -> None:
    family, name = named_alike(rule.cause.id)
    code = sys.modules[f"whystall.diagnosis.rules.{family}.{name}"]
    assert vars(code)["RULE"] is rule
    assert (RULE_FILES / family / f"{name}.toml").is_file()
    assert (DOCS / "causes" / f"{rule.cause.id}.md").is_file()
    assert bool(rule.finders) == (rule.cause.unseen is None), "a cause without a finder says why"
    assert (RULE_TESTS / family / f"test_{name}.py").is_file()


def test_no_rule_and_no_entry_is_left_out_of_the_list() -> None:
    listed = {named_alike(cause) for cause in causes()}
    assert {(path.parent.name, path.stem) for path in RULE_FILES.glob("*/*.toml")} == listed
    assert {(path.parent.name, path.stem) for path in RULE_FILES.glob("*/*.py")} - listed == {
        (family, "__init__") for family, _ in listed
    }
    tested = {(path.parent.name, path.stem.removeprefix("test_")) for path in RULE_TESTS.glob("*/test_*.py")}
    assert tested <= listed


OF_JOB_LINES = {*Long._fields, *(f"removed_{name}" for name in ("least", "expected", "most"))}
"""Thresholds that `detectors/job_lines.py` reads for all causes outside of steps."""


def test_every_threshold_is_used_and_says_where_it_comes_from() -> None:
    for cause in causes().values():
        family, name = named_alike(cause.id)
        text = (RULE_FILES / family / f"{name}.py").read_text("utf-8")
        detectors = re.findall(r"whystall\.diagnosis\.detectors\.(\w+) import", text)
        of_it = f'cause_beside("whystall.diagnosis.rules.{family}.{name}")'
        texts = [(RULE_FILES.parent / "detectors" / f"{one}.py").read_text("utf-8") for one in detectors]
        text += "".join(one for one in texts if of_it in one)
        for key, threshold in cause.thresholds.items():
            shared = key in OF_JOB_LINES and "detectors.job_lines import" in text
            assert shared or f'CAUSE.threshold("{key}")' in text, f"{cause.id} does not use {key}"
            assert threshold.is_
            assert threshold.source


def test_the_readme_says_how_many_causes_have_rules() -> None:
    found = sum(bool(rule.finders) for rule in RULES)
    assert f"{found} causes have rules" in (ROOT / "README.md").read_text("utf-8")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.cause.id)
def test_what_no_rule_looks_for_is_explained_with_the_reason(rule: Rule, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", rule.cause.id]) == 0
    told = "".join(capsys.readouterr().out.split())
    where = "".join((rule.cause.unseen or ", ".join(rule.found_in)).split())
    assert where in told
