"""The account of torch.compile: seconds, graph breaks, recompiles and caches, from the compiler's structured log."""
