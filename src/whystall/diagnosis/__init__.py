"""From results to findings and the verdict."""
