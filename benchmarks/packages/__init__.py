"""Jobs with the packages that people use, each with a switch for its repair."""
