"""Causes in the way the device is driven."""
