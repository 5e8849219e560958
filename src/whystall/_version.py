"""The version, in one place for the package; pyproject.toml must agree (a test says so)."""

from typing import Final

__version__: Final = "0.1.0"
