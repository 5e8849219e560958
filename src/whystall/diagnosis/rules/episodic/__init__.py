"""Causes of the family ``episodic``: what happens in some steps only."""
