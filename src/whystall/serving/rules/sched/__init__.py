"""Causes in the settings of the scheduler."""
