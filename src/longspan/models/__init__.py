"""Models: `build` makes one by name, `load` reads one from its folder, `names` lists them.

Where to find what:

    base            `Model`, and the abilities that tasks and decoding ask for
    registry        the table of names; `build`
    catalog         descriptions of everything that has a name: `longspan list`, `longspan show`
    folder          save and load; build_limits refuses configurations that are too large for their files

    transformer     the Transformer; encoder (BERT, …) and decoder (GPT, Llama and others) are its halves
    body            from options to a stack of blocks; text and headed add tokens and task heads
    universal  transformer_xl  compressive  etc_model  electra      Transformers with another structure
    vision/         the Vision Transformer
    classics/       before the Transformer: recurrent, seq2seq, elmo, word2vec

    presets/        the models of the papers: "gpt2", "bert-base", … with their options
    cost/           parameters, operations and memory of a model, without running it

To add a model that differs from these by its attention or its sizes only, add a preset. For any other, add a file and
its line in `registry`, or register a class of your own with `@longspan.register_model`.
"""

from longspan.models.base import CausalModel, Model
from longspan.models.folder import load
from longspan.models.registry import build, find, names

__all__ = ["CausalModel", "Model", "build", "find", "load", "names"]
