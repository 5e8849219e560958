"""What all tests share: the recorded traces beside the repository."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import whystall
from whystall.report.schema import Report
from whystall.trace.model import Trace

# Where a change is judged, the same examples every time; new ones are searched for wherever people work. No example has
# to be done in time: a busy machine is no fault of the code.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "here")

# torch's threads sleep where they have nothing to do: those of several processes on few cores would wait for each other
# at full speed, which makes a test of products twenty times as slow.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WHYSTALL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("WHYSTALL_BUILD_COUNTER", "0")  # a compiler beside the tests


@pytest.fixture(autouse=True)
def _at_its_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """`whystall watch` within a test lowers the priority of its process, and with it that of all later tests."""
    monkeypatch.setattr(os, "nice", lambda _by: 0)


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Disables the garbage collector during collection: it took a fifth of the time, and collected objects live on."""
    gc.disable()


def pytest_collection_finish() -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # of this process alone: as many run as there are cores
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _kept_for_good() -> Iterator[None]:
    """What the tests of a module leave (recorded traces, their reports) is passed over by collections of garbage."""
    yield
    gc.collect()
    gc.freeze()


class RealTraces:
    """The recorded traces by file name, and what an independent program says of them."""

    def path(self, name: str) -> Path:
        path = TRACES / name
        if not path.exists():
            reason = f"the recorded trace {name} is not beside the repository (../shared/traces)"
            if os.environ.get("WHYSTALL_REQUIRE_TRACES") == "1":
                pytest.fail(reason)
            pytest.skip(reason)
        return path

    def load(self, name: str) -> Trace:
        self.path(name)
        return _load(name)

    def report(self, name: str) -> Report:
        self.path(name)
        return _report(name)

    def expected(self, name: str) -> dict[str, Any]:
        self.path("expected.json")
        found: dict[str, Any] = _expected()[name]
        return found


@cache
def _load(name: str) -> Trace:
    return whystall.load(TRACES / name, cache=False)


@cache
def _report(name: str) -> Report:
    return whystall.analyze(TRACES / name, cache=False)


@cache
def _expected() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((TRACES / "expected.json").read_text("utf-8"))
    return loaded


@pytest.fixture(scope="session")
def real_traces() -> RealTraces:
    return RealTraces()
