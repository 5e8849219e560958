"""Simulated jobs whose truth is known: the generator is run again without the cause.

The simulator shares no code with whystall: it is its oracle.
"""
