"""Causes of the family ``episodic``: occasional work."""
