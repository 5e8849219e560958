"""Real training jobs on the CPU, each with faults that a flag puts in."""
