"""Causes before the end of the first step."""
