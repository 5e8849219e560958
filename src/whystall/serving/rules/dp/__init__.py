"""Causes in the balance of several engines."""
