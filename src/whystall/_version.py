"""The version, in one place for the package; pyproject.toml must agree (a test says so)."""

__version__ = "0.1.0"
