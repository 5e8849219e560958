"""Causes in the amount of load."""
