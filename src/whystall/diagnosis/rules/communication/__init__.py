"""Causes of the family ``communication``: exposed, small, slow or unequal collectives."""
