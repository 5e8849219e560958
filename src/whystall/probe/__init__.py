"""Measures what this machine can do: matrix products, copies, launches. torch is imported where a probe runs."""
