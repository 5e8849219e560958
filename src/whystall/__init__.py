"""whystall explains why a deep-learning job is slow.

``load`` reads a trace, ``analyze`` makes the report on one or many, ``render`` prints it. Nothing heavy is imported
before it is used.
"""

from __future__ import annotations

from whystall._version import __version__

TYPE_CHECKING = False  # importing typing takes half as long as starting Python
if TYPE_CHECKING:
    from typing import Any

    from whystall._api import analyze, compare, demo_recording, load, render
    from whystall.capture.config import Schedule
    from whystall.capture.profile import profile
    from whystall.model.counter import FlopCounter
    from whystall.model.prediction.predict import predict
    from whystall.model.profile import model_profile
    from whystall.report.schema import Report
    from whystall.trace.model import Trace

__all__ = [
    "FlopCounter",
    "Report",
    "Schedule",
    "Trace",
    "__version__",
    "analyze",
    "compare",
    "demo_recording",
    "load",
    "model_profile",
    "predict",
    "profile",
    "render",
]

_HOMES = {
    "FlopCounter": "whystall.model.counter",
    "Report": "whystall.report.schema",
    "Trace": "whystall.trace.model",
    "Schedule": "whystall.capture.config",
    "analyze": "whystall._api",
    "compare": "whystall._api",
    "demo_recording": "whystall._api",
    "load": "whystall._api",
    "model_profile": "whystall.model.profile",
    "predict": "whystall.model.prediction.predict",
    "profile": "whystall.capture.profile",
    "render": "whystall._api",
}


_SUBPACKAGES = frozenset({"cost", "deepspeed"})  # ``whystall.cost.register`` needs no import of its own


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _SUBPACKAGES:
        return import_module(f"whystall.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'whystall' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def load_ipython_extension(shell: Any) -> None:
    """IPython's entry point at ``%load_ext whystall``: the magic ``%%whystall``, and results shown as pages are."""
    from whystall.notebook import load as load_notebook

    load_notebook(shell)


def __dir__() -> list[str]:
    return __all__
