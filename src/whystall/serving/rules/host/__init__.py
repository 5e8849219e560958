"""Causes on the host: Python between and within the engine's steps, and the server's front."""
