"""`whystall attach` on scripts as users write them, each of which is slow for a reason that it makes plain."""
