"""What several causes look for in a case, worked out once: collectives, long Python, loaders, episodes, kernels."""
