"""Causes of the family ``input``: the loader, its workers, and their work."""
