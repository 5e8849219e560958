"""Causes in speculative decoding."""
