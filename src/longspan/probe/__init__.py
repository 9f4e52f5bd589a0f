"""Use with care: what a trained model prefers, and what it does with hostile text."""
