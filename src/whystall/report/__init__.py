"""Results as people and machines read them."""
