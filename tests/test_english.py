"""Texts of the project are plain English: subject, verb, object, in the field's terms (CONTRIBUTING.md, "Prose")."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import english

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "whystall"
LONGEST_HOW_TO = 120
"""Lines of a how-to page: what to type, what you get, what it costs, what to do when it fails."""


def test_pages_are_plain() -> None:
    assert english.faults(ROOT / "docs", ("page",)) == []


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")), ids=lambda page: page.stem)
def test_top_pages_are_plain(page: Path) -> None:
    [text] = english.of_page(page)
    assert [sentence for sentence in english.sentences(text.words) if english.fault(sentence)] == []


def test_entries_are_plain() -> None:
    """Causes, remedies, thresholds and vocabulary."""
    assert english.faults(SOURCE, ("entry",)) == []


def test_messages_are_plain() -> None:
    """Errors, help texts, findings, evidence, captions."""
    assert english.faults(SOURCE, ("text",)) == []


def test_docstrings_and_comments_are_plain() -> None:
    assert english.faults(SOURCE, ("docstring", "comment")) == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "how-to").glob("*.md")), ids=lambda page: page.stem)
def test_a_how_to_is_short(page: Path) -> None:
    assert len(page.read_text("utf-8").splitlines()) <= LONGEST_HOW_TO


def test_the_first_screen_of_the_readme_has_the_two_commands_and_the_page() -> None:
    screen = "\n".join((ROOT / "README.md").read_text("utf-8").splitlines()[:20])
    assert "make demo" in screen
    assert "make test" in screen
    assert "docs/assets/report.png" in screen
