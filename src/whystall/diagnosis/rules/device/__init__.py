"""Causes of the family ``device``: a device that is slower than it should be."""
