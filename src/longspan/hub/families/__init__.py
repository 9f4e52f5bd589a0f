"""Architectures of Hugging Face whose checkpoints are read and written. To add one: a file, and its line here."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from longspan.errors import UnknownName, nearest
from longspan.hub.families.base import Family, HeadRequest
from longspan.nn.heads import Head

FAMILIES: dict[str, str] = {
    "bert": "longspan.hub.families.bert:BERT",
    "roberta": "longspan.hub.families.roberta:ROBERTA",
    "camembert": "longspan.hub.families.roberta:CAMEMBERT",
    "xlm-roberta": "longspan.hub.families.roberta:XLM_ROBERTA",
    "distilbert": "longspan.hub.families.distilbert:DISTILBERT",
    "longformer": "longspan.hub.families.longformer:LONGFORMER",
    "big_bird": "longspan.hub.families.big_bird:BIG_BIRD",
    "t5": "longspan.hub.families.t5:T5",
    "longt5": "longspan.hub.families.longt5:LONGT5",
    "vit": "longspan.hub.families.vit:VIT",
    "deit": "longspan.hub.families.deit:DEIT",
    "reformer": "longspan.hub.families.reformer:REFORMER",
    "modernbert": "longspan.hub.families.modernbert:MODERNBERT",
    "mpnet": "longspan.hub.families.mpnet:MPNET",
    "opt": "longspan.hub.families.opt:OPT",
    "gpt_neox": "longspan.hub.families.gpt_neox:GPT_NEOX",
    "nystromformer": "longspan.hub.families.nystromformer:NYSTROMFORMER",
    "openai-gpt": "longspan.hub.families.gpt:GPT",
    "gpt2": "longspan.hub.families.gpt:GPT2",
    "llama": "longspan.hub.families.llama:LLAMA",
    "mistral": "longspan.hub.families.mistral:MISTRAL",
    "qwen2": "longspan.hub.families.qwen:QWEN2",
    "qwen3": "longspan.hub.families.qwen:QWEN3",
    "gemma2": "longspan.hub.families.gemma:GEMMA2",
    "gemma3_text": "longspan.hub.families.gemma:GEMMA3",
    "smollm3": "longspan.hub.families.smollm3:SMOLLM3",
    "phi3": "longspan.hub.families.phi3:PHI3",
    "gpt_oss": "longspan.hub.families.gpt_oss:GPT_OSS",
    "olmo2": "longspan.hub.families.olmo2:OLMO2",
    "albert": "longspan.hub.families.albert:ALBERT",
    "electra": "longspan.hub.families.electra:ELECTRA",
    "bart": "longspan.hub.families.bart:BART",
    "led": "longspan.hub.families.led:LED",
    "mbart": "longspan.hub.families.bart:MBART",
}


def names() -> list[str]:
    """The `model_type` of every family."""
    return list(FAMILIES)


def find(name: str, where: Path | str) -> Family:
    """The family of a `model_type`; an error names `where` it was read."""
    if name not in FAMILIES:
        near = nearest(name, FAMILIES)
        hint = "" if near is None else f"the nearest is {near!r}; "
        supported = ", ".join(sorted(FAMILIES))
        raise UnknownName(f"{where}: models of the type {name!r} are not supported; {hint}these are: {supported}")
    module, _, attribute = FAMILIES[name].partition(":")
    family = getattr(import_module(module), attribute)
    assert isinstance(family, Family)
    return family


def of_config(record: Mapping[str, Any], where: Path | str, tasks: Sequence[HeadRequest] | None = None) -> Family:
    """The family of a config.json: its `model_type`, and `is_decoder` for families that have both kinds.

    An encoder alone is meant by some classes (T5EncoderModel) and, unless the class has them too, by some `tasks`.
    """
    family = find(str(record["model_type"]), where)
    if record.get("is_decoder") and family.decoder is not None:
        return family.decoder
    encoder = family.encoder
    if encoder is None:
        return family
    if not tasks:
        return encoder if family.named(record) in encoder.architectures else family
    named = {task if isinstance(task, str) else Head.read(task).task for task in tasks}
    return encoder if named <= {*encoder.heads} and not named <= {*family.heads} else family


__all__ = ["FAMILIES", "find", "names", "of_config"]
