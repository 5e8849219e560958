"""Words that several rooms must agree on, each in one table with a source per row.

Signals, parts of a step, episodes.
"""
