"""Time, memory and energy of what runs here, and what follows from them: which mechanism to pick."""
