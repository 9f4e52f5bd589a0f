"""The Long Range Arena (Tay et al. 2020), offline: its tasks, one model around every mechanism, and grids of runs."""
