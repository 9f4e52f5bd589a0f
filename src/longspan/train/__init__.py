"""Training: recipes, runs, checkpoints. A training run goes through three files.

1. `recipe.py` reads a TOML file and builds a `Trainer` with data and model: `begin`, or `resume` for an old run.
2. `fit.py`: `train(trainer)` calls one update after another, logs, evaluates, saves checkpoints and writes the model.
3. `loop.py`: `Trainer.updates()` makes the updates: load a batch, forward, backward, clip, optimizer step.

`evaluate.py` computes metrics, `saving.py` and `checkpoint.py` save and restore a run, `run.py` is its folder, and
`processes.py` and `sharding.py` are for several processes.
"""
