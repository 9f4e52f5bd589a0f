"""Our models as models of transformers: thin classes around a model of ours, which is not written again.

configuration   `LongspanConfig`: our config.json, with the names that their tools read
state_cache     `LongspanCache`: the state of our decoding as a cache of theirs
base            what all classes share: building, tied weights, embeddings, masks
causal          next-token prediction and generation
seq2seq         encoder–decoders
heads           masked tokens, labels of texts and tokens, answers, choices, images, plain states
wrap            `to_transformers`: a class around a model that is there
auto            registers the classes with transformers' Auto classes

These modules import transformers; `longspan.hub.register` and `to_transformers` import them.
"""
