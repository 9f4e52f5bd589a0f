"""Small folders with a model and a tokenizer, for the tests of what checkpoints are used for."""

import json
from pathlib import Path
from typing import Any

import torch
from tests.hub.parity import random_model
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import BertConfig
from transformers.models.bert import modeling_bert

from longspan.data import Tokenizer
from longspan.models import build

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, "the", "a", "cat", "dog", "sits", "runs", "on", "mat", "##s", ".", "capital", "of", "france", "is"]
SMALL = {
    "vocab_size": len(WORDS) + 3,  # more rows than tokens, as many checkpoints have
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
}


def bert(folder: Path, name: str = "BertForMaskedLM", **config: Any) -> Path:
    """A BERT with random weights as transformers writes it, and a vocabulary."""
    model = random_model(getattr(modeling_bert, name), BertConfig(**{**SMALL, **config}), torch.float32)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return folder


def sentence_bert(folder: Path, **pooling: bool) -> Path:
    """The same, with what sentence-transformers writes beside it."""
    bert(folder, "BertModel")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 16, **pooling}))
    kinds = ["Transformer", "Pooling", "Normalize"]
    modules = [{"idx": at, "type": f"sentence_transformers.models.{kind}"} for at, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def letters(*, begin: bool = False) -> Tokenizer:
    """A tokenizer of bytes with a token that ends texts."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {"<s>": 0, "</s>": 1, **{letter: number for number, letter in enumerate(alphabet, start=2)}}
    inner = Inner(models.BPE(ids, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    if begin:
        inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return Tokenizer(inner, {"bos": "<s>", "eos": "</s>"})


SIZES = {"vocabulary": 258, "width": 16, "layers": 2, "heads": 2, "hidden": 24}


def decoder(folder: Path, *, begin: bool = False, **options: Any) -> Path:
    """A language model of ours over bytes."""
    torch.manual_seed(1)
    build("decoder", **{**SIZES, "max_length": 40, "position": "learned", **options}).save(folder)
    letters(begin=begin).save(folder)
    return folder


def transformer(folder: Path) -> Path:
    """An encoder–decoder of ours over bytes."""
    torch.manual_seed(1)
    build("transformer", **SIZES).save(folder)
    letters().save(folder)
    return folder
