"""Causes in the load generator: the server is not asked, or its answers are not read."""
