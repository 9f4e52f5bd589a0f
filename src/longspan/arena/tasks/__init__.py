"""The tasks of the arena: data, labels, and what trivial predictors reach.

- `registry`: every task by name.
- `listops`, `listops_expressions`: ListOps; its expressions and their values.
- `texts`: Text (film reviews, byte by byte) and Retrieval (pairs of papers).
- `images`, `cifar`: Image; reading CIFAR-10.
- `pathfinder/`: Pathfinder and Path-X.
- `recall`: associative recall over a distance.
- `baselines`: trivial predictors, to compare accuracies with.
- `examples`, `data_files`, `shards`, `unique_splits`: batches, data files, generated shards, disjoint splits.
"""
