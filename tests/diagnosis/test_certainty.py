"""How sure a finding is: what its rule states, as others judged it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from whystall.diagnosis.candidate import Replayed


@pytest.mark.parametrize(
    ("on_device", "stated", "explained", "told"),
    [
        (True, 0.9, 1.0, 0.95),
        (True, 0.85, 1.0, 0.925),
        (True, 0.9, 0.5, 0.475),
        (True, 0.6, 1.0, 0.6),  # what a rule itself takes for no more than likely was never judged
        (False, 0.9, 1.0, 0.9),  # nor were jobs without a device
    ],
)
def test_half_the_doubt_about_causes_on_devices_was_too_much(
    on_device: bool, stated: float, explained: float, told: float
) -> None:
    case: Any = SimpleNamespace(
        ranks=(SimpleNamespace(on_device=on_device),), fidelity=SimpleNamespace(share=explained)
    )
    candidate = Replayed(cause="host.python", attributed_ns=1, evidence=(), removal=None, method="", confidence=stated)
    assert candidate.certainty(case) == pytest.approx(told)
