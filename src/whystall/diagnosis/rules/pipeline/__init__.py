"""Causes of the family ``pipeline``: stages that wait for each other."""
