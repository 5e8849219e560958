"""Settings found by paired trials: what is worth trying, what won beyond the noise, and what to set."""
