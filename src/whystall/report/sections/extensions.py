"""Sections that other packages bring. An error in one becomes a sentence in the report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from whystall.plugins import brought
from whystall.report import tables
from whystall.report.sections.section import SECTIONS_GROUP, OnPage, Section
from whystall.report.tables import Cell, Column, Limits, Table


def installed_sections() -> tuple[Section, ...]:
    """The sections that other packages bring; one that fails, now or when it is made, is a sentence."""
    found, failures = brought(SECTIONS_GROUP, Section, "sections")
    return (*(_guarded(section) for section in found), *(_sorry(failure) for failure in failures))


def _guarded(section: Section) -> Section:
    """The section with a ``build`` that does not raise: a fault of another package never costs the report."""

    def build(part: Any, limits: Limits) -> Table:
        try:
            made: object = section.build(part, limits)
        except Exception as error:  # noqa: BLE001 - another package's code
            return _sentence(section.id, f"the section could not be made: {type(error).__name__}: {error}", limits)
        if isinstance(made, Table):
            return made
        return _sentence(section.id, f"the section could not be made: {type(made).__name__} is no table", limits)

    return replace(section, build=build)


def _sorry(failure: str) -> Section:
    return Section(
        id="extensions",
        scope="capture",
        build=lambda _, limits: _sentence("extensions", failure, limits),
        page=OnPage(chapter="capture"),
    )


def _sentence(name: str, text: str, limits: Limits) -> Table:
    rows: tuple[tuple[Cell, ...], ...] = ((tables.words(text, limits),),)
    return tables.table(name, name.capitalize(), "From another package.", (Column("Note", "prose", priority=1),), rows)
