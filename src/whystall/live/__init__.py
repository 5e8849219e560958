"""Observes a process that was not started through whystall, from outside: its stacks, threads, files and children."""
