"""Whether a job that becomes slow while it runs is told so, and why."""
