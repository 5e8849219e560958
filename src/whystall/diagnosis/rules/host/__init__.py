"""Causes of the family ``host``: launches, Python, synchronisation, copies, allocation."""
