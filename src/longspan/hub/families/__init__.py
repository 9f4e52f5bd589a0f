"""The families whose checkpoints are read and written. To add one: its file, and its line here."""

from importlib import import_module
from pathlib import Path

from longspan.errors import UnknownName
from longspan.hub.families.base import Family

FAMILIES: dict[str, str] = {
    "bert": "longspan.hub.families.bert:BERT",
    "roberta": "longspan.hub.families.roberta:ROBERTA",
    "camembert": "longspan.hub.families.roberta:CAMEMBERT",
    "xlm-roberta": "longspan.hub.families.roberta:XLM_ROBERTA",
    "distilbert": "longspan.hub.families.distilbert:DISTILBERT",
    "longformer": "longspan.hub.families.longformer:LONGFORMER",
    "big_bird": "longspan.hub.families.big_bird:BIG_BIRD",
    "vit": "longspan.hub.families.vit:VIT",
    "reformer": "longspan.hub.families.reformer:REFORMER",
    "openai-gpt": "longspan.hub.families.gpt:GPT",
    "gpt2": "longspan.hub.families.gpt:GPT2",
    "llama": "longspan.hub.families.llama:LLAMA",
    "albert": "longspan.hub.families.albert:ALBERT",
    "electra": "longspan.hub.families.electra:ELECTRA",
    "bart": "longspan.hub.families.bart:BART",
    "led": "longspan.hub.families.led:LED",
    "mbart": "longspan.hub.families.bart:MBART",
}


def names() -> list[str]:
    """The `model_type` of each."""
    return list(FAMILIES)


def find(name: str, where: Path | str) -> Family:
    """The family of a `model_type`; `where` it was said, for the error."""
    if name not in FAMILIES:
        supported = ", ".join(sorted(FAMILIES))
        raise UnknownName(f"{where}: models of the type {name!r} are not supported; these are: {supported}")
    module, _, attribute = FAMILIES[name].partition(":")
    found = getattr(import_module(module), attribute)
    assert isinstance(found, Family)
    return found


__all__ = ["FAMILIES", "find", "names"]
