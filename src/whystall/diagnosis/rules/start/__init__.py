"""Causes before the first step and after the last one."""
