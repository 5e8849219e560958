"""A running job becomes a run folder: zero-code launch, schedule, hooks, samples, traces.

Everything here that runs inside a user's process obeys one rule: it may fail, the job may not. Nothing
is imported before it is needed, torch only where the user imported it first.
"""
