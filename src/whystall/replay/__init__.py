"""The dependency graph of recorded steps, and what-if simulation on it."""
