"""The Long Range Arena (Tay et al. 2020), offline: its tasks, one shell for every mechanism, and the grid of runs."""
