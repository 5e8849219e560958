"""Causes of the family ``inference``: serving and decoding."""
