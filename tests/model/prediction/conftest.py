"""One process that simulates, for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from whystall.model.prediction.simulator import Simulator

MODELS = Path(__file__).with_name("models.py")


@pytest.fixture(scope="session")
def simulator() -> Iterator[Simulator]:
    pytest.importorskip("torch", reason="steps are simulated with torch")
    with Simulator() as running:
        yield running


@pytest.fixture(scope="session")
def models() -> str:
    return str(MODELS)
