"""A model's profile as one self-contained page: a tree that folds, also without JavaScript."""

from __future__ import annotations

from collections.abc import Mapping

from whystall._version import __version__
from whystall.model.results import ModelProfile, ModuleProfile
from whystall.report import tables
from whystall.report.document import Row, grid
from whystall.report.model_tree import CONVENTIONS, flops
from whystall.report.shell import MAX_BYTES, fill
from whystall.report.tables import Cell, Table

_MODULES = (3000, 1500, 700, 300)


def render_model_page(profile: ModelProfile, *, title: str, conventions: Mapping[str, int] | None = None) -> str:
    """The page of a profile; of a model with very many modules the deepest are left out, and a line says it."""
    page = ""
    for most in _MODULES:
        page = _page(profile, title, conventions or {}, _shown(profile, most))
        if len(page.encode()) <= MAX_BYTES:
            break
    return page


def _page(profile: ModelProfile, title: str, conventions: Mapping[str, int], shown: list[ModuleProfile]) -> str:
    children: dict[str | None, list[ModuleProfile]] = {}
    for module in shown[1:]:
        children.setdefault(module.parent, []).append(module)
    return fill(
        "model.html.j2",
        title=title,
        source=("model",),
        version=__version__,
        schema="",
        scripts=("theme.js", "tables.js", "copying.js"),
        styles=("page.css", "tree.css"),
        profile=profile,
        phases=_phases(profile),
        root=shown[0] if shown else None,
        children=children,
        omitted=len(profile.modules) - len(shown),
        others=_conventions(conventions),
        words=CONVENTIONS,
        flops=flops,
    )


def _phases(profile: ModelProfile) -> Table:
    phases = {
        "forward": profile.forward,
        "backward": profile.backward,
        "recompute": profile.recompute,
        "optimizer": profile.optimizer,
    }
    rows: list[Row] = [
        (
            name,
            *map(_flops, (one.model_flops, one.model_flops_causal, one.executed_flops, one.all_flops)),
            tables.size(one.bytes),
            tables.duration(one.time_ns),
        )
        for name, one in phases.items()
        if one.all_flops or one.bytes
    ]
    labels = ("phase", "model FLOPs", "causal", "executed", "all", "bytes", "time")
    return grid("Work of a step, by phase", labels, rows).table


def _conventions(conventions: Mapping[str, int]) -> Table:
    rows = ((name, _flops(value)) for name, value in conventions.items())
    return grid("FLOPs of a training step", ("convention", "FLOPs"), rows).table


def _flops(value: int) -> Cell:
    return Cell(flops(value), value)


def _shown(profile: ModelProfile, most: int) -> list[ModuleProfile]:
    deepest = max((module.depth for module in profile.modules), default=0)
    while deepest > 1 and sum(module.depth <= deepest for module in profile.modules) > most:
        deepest -= 1
    return [module for module in profile.modules if module.depth <= deepest][:most]
