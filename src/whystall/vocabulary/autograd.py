"""Names by which torch's autograd engine marks its calls in a recording."""

from __future__ import annotations

from typing import Final

ENGINE: Final = "autograd::engine::"
"""Begins the name of each call of the engine."""
EVALUATES: Final = "autograd::engine::evaluate_function"
"""Begins the name of each node that it runs."""
ACCUMULATE: Final = "torch::autograd::AccumulateGrad"
"""The operator that adds a gradient to a parameter's."""
