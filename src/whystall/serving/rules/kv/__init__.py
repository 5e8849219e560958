"""Causes in the key-value cache's size."""
