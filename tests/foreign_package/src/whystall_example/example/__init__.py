"""Causes of the family ``example``: one module each, with its entry beside it."""
