"""A process that was not started through whystall, asked from outside: its stacks, threads, files and children."""
