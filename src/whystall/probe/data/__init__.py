"""The cost of loading data: a batch's stages, the prediction for other numbers of workers, and good settings."""
