"""Proof of a remedy: interleaved pairs of runs, an interval, the mechanism, the numerics."""
