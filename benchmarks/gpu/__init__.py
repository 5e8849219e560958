"""What is checked on a machine with a CUDA device; nothing here runs in CI."""
