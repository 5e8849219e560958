"""Edits of a user's program, and the loop that tries them in a copy and keeps or rejects each (``whystall fix``)."""
