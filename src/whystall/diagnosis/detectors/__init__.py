"""Detectors that several causes share, computed once: collectives, long Python, loaders, episodes, kernels."""
