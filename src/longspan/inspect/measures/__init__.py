"""Measures of what happens inside a model, each with its control: what `longspan inspect --report` shows."""
