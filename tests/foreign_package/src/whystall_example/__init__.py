"""What another package adds to whystall: each module is one extension, named by an entry point in ``pyproject.toml``."""
