"""Architecture search over mechanism, window, width and depth, by Optuna, under a budget of time or memory."""
