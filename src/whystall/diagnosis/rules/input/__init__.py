"""Causes of the family ``input``: the loader, its workers, and what they do."""
