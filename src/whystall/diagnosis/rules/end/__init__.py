"""Causes after the last step."""
