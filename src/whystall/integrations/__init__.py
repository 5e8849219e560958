"""Thin adapters for frameworks that people use already; each is imported only by who uses it.

None is needed under ``whystall run``, which watches any of these frameworks by itself: they are for those
who start the capture from their own program.
"""
