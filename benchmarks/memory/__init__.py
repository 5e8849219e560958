"""Predicted against measured peaks of memory, on this machine's CPU."""
