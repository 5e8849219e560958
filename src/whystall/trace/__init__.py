"""Recordings: readers, the linked tables of a `Trace`, and its cache."""
