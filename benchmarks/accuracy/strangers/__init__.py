"""Jobs written by a stranger to the tool, and what the tool says about them."""
