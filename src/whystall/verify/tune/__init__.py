"""Settings found by paired trials: candidates, winners beyond the noise, and the settings to use."""
