from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="counting models needs torch")


def pytest_itemcollected(item: pytest.Item) -> None:
    """torch and transformers warn of their own affairs."""
    if "tests/model" in str(item.path) or "tests/deepspeed" in str(item.path):
        item.add_marker(pytest.mark.filterwarnings("ignore"))
