"""A model's profile as one self-contained page: a tree that folds, no script, no remote address."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from whystall.model.results import ModelProfile, ModuleProfile
from whystall.report.format import count, duration, share, size
from whystall.report.model_tree import CONVENTIONS, flops
from whystall.report.names import clean

MAX_MODULES = 3000


def render_model_page(profile: ModelProfile, *, title: str, conventions: Mapping[str, int] | None = None) -> str:
    """The page of a profile; of a model with more than 3,000 modules the deepest are left out, and it says so."""
    shown = _shown(profile)
    children: dict[str | None, list[ModuleProfile]] = {}
    for module in shown[1:]:
        children.setdefault(module.parent, []).append(module)
    return (
        _environment()
        .get_template("model.html.j2")
        .render(
            profile=profile,
            title=title,
            root=shown[0] if shown else None,
            children=children,
            omitted=len(profile.modules) - len(shown),
            others=conventions or {},
            words=CONVENTIONS,
        )
    )


def _shown(profile: ModelProfile) -> list[ModuleProfile]:
    deepest = max((module.depth for module in profile.modules), default=0)
    while deepest > 1 and sum(module.depth <= deepest for module in profile.modules) > MAX_MODULES:
        deepest -= 1
    return [module for module in profile.modules if module.depth <= deepest][:MAX_MODULES]


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("whystall.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "clean": clean, "count": count, "duration": duration, "flops": flops, "share": share, "size": size,
    }  # fmt: skip
    return environment
