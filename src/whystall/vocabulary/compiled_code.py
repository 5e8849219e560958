"""Names by which torch marks the calls of compiled code in a recording."""

from __future__ import annotations

from typing import Final

REGION: Final = "Torch-Compiled Region"
"""Begins the name of each call of a compiled function; behind it stand the numbers of its code and of its version."""
FUNCTION: Final = "CompiledFunction"
"""Begins the names of the autograd function around compiled code, forward and backward."""
EITHER: Final = (REGION, FUNCTION)
