"""Explain device memory: read snapshots of the allocator, and simulate the allocator itself."""
