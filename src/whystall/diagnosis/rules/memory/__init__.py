"""Causes of the family ``memory``: growth, fragmentation, the allocator."""
