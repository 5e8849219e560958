from __future__ import annotations

from types import ModuleType

import pytest

torch = pytest.importorskip("torch", reason="counting models needs torch")


def pytest_itemcollected(item: pytest.Item) -> None:
    """torch and transformers warn of their own affairs."""
    if "tests/model" in str(item.path) or "tests/deepspeed" in str(item.path):
        item.add_marker(pytest.mark.filterwarnings("ignore"))


NOT_BUILT = "counting's native part is not built for this torch: whystall doctor --build-counter"


@pytest.fixture
def native() -> ModuleType:
    """The native part of counting, in use."""
    from whystall.model import native as part

    built = part.load()
    if built is None:
        pytest.skip(NOT_BUILT)
    return built


@pytest.fixture(params=["python", "native"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting goes both ways: by Python alone and with the native part."""
    if request.param == "native":
        request.getfixturevalue("native")
    else:
        monkeypatch.setattr("whystall.model.native.load", lambda: None)
