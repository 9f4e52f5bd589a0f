"""The models of the arena: one encoder shell for every attention mechanism.

- `registry`: every model by name, recurrent networks included.
- `arena_encoder`: the encoder, its pooling and its classifier.
- `bidirectional`: causal mechanisms that read the text in both directions.
"""
