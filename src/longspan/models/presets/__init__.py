"""The models of the papers, by name: a preset is a model of the registry with the paper's options.

`longspan.models.build("gpt2", dropout=0.0)` builds one, and `longspan show gpt2` prints its parameters and costs. A
model that differs from the Transformer only by its attention is a preset here, not a class.

    classics    the Transformer, GPT, GPT-2, GPT-3        llama       Llama and models of its architecture
    encoders    BERT, RoBERTa, …                          albert      ALBERT, ELECTRA
    bart        BART                                      vision      ViT, ResNet, Perceiver, sets
    patterns    fixed patterns: Sparse, Longformer, …     learned     learned patterns, low rank, kernels
    recurrence  Transformer-XL, Universal, LSTM, ELMo     small       small copies, for tests

`parameters` is the count that the paper prints. `exact` is the count that follows from the paper's description; tests
check it. `remarks` explain differences between the two, choices where the paper is silent, and what is left out.
"""

from longspan.errors import UnknownName, suggest
from longspan.models.presets import albert, bart, classics, encoders, learned, llama, patterns, recurrence, vision
from longspan.models.presets.row import Preset
from longspan.models.presets.small import shrink

PRESETS: dict[str, Preset] = {
    **classics.ROWS,
    **encoders.ROWS,
    **albert.ROWS,
    **llama.ROWS,
    **bart.ROWS,
    **recurrence.ROWS,
    **patterns.ROWS,
    **learned.ROWS,
    **vision.ROWS,
}


def names() -> list[str]:
    """The names of all presets."""
    return list(PRESETS)


def find(name: str) -> Preset:
    """A preset by its name."""
    if name not in PRESETS:
        raise UnknownName(f"no preset is called {name!r}: {suggest(name, PRESETS)}")
    return PRESETS[name]


__all__ = ["PRESETS", "Preset", "find", "names", "shrink"]
