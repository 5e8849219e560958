"""Causes in the reuse of computed prompts."""
