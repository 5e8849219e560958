"""Causes in the times at which requests come."""
