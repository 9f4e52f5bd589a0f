"""Our mechanisms inside models of transformers, by their `AttentionInterface`.

names          "longspan:window?window=256": a mechanism with its options as the name of an implementation
registration   `register`: makes the names known to transformers, and refuses models that do not use the interface
mask_codes     what a mask says, in one number per key: padding, packed texts, causal or not, sliding window
masks          the mask function: no tensor of queries × keys
packing        borders of packed texts, from positions or from cumulative lengths
layers         what a layer of theirs is: causal, cross, heads, number
mechanisms     the mechanism of a layer: built from the name, or attached with weights of its own
global_projections   projections of global tokens, which their layers do not have
attend         the attention function
dense          exact attention with their soft caps, sinks, biases and masks
subclasses     models that carry mechanisms with weights: `use_attention`, save and load

Only `names` may be imported without transformers, which takes seconds.
"""
