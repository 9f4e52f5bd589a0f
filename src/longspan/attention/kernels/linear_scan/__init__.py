"""Linear attention in chunks: φ(q)·Σ φ(k)vᵀ without an n × n tensor and without one state per position.

- `scan`: the entry points `causal`, `full` and `start`, and their cost.
- `causal`: the causal form, forward and backward.
- `full`: the form in which every query reads every key.
- `gated`: the causal form with a gate for each key dimension (gated linear attention).
- `rows`: what `causal` and `full` share: blocks of features, their scales, the division.
"""
