"""What device memory holds: snapshots of the allocator read and explained, and the allocator itself simulated."""
