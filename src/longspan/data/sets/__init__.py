"""Named data sets: where they come from, and how they are prepared.

- `named`: the known sets and their files; `sources`: addresses and checksums.
- `download`: checked downloads; `cache`: where longspan stores files of its own.
- `prepare`, `prepared`: tokenise a set to disk; find it again for training.
- `generated`: small synthetic data for each kind of task.
"""
