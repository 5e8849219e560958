"""How often whystall is right: real jobs, simulated jobs and recorded traces whose cause is known."""
