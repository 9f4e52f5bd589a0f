"""Running a grid of arena cells (task × model × setting × seed).

- `grid`: which cells, in which order, and how long they take.
- `cell`: one cell and its record.
- `session`, `runner`, `process`: the whole grid; its worker processes; one cell in one process.
- `ray_cluster`: the same grid on a Ray cluster.
- `training`, `pretraining`: training of one cell; self-supervised pre-training.
- `speed`, `efficiency`: steps per second and memory; the efficiency table.
- `results`: the files `grid.json` and `results.jsonl`.
"""
