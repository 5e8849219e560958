"""What loading data costs: the stages of one batch, what they say of other numbers of workers, and what to set."""
