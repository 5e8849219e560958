"""What another package adds to whystall.

Each module is one extension, named by an entry point in ``pyproject.toml``.
"""
