"""RoBERTa (Liu et al. 2019), and CamemBERT and XLM-R, which are RoBERTa in other languages.

BERT without sentence pairs. Positions start after the padding id: the table has padding id + 1 unused rows before that
of the first token, and padding in a text has no position.
"""

from dataclasses import replace
from typing import Any

from longspan.errors import Unsupported
from longspan.hub.families.base import Config, Family
from longspan.hub.families.bert import BODY, FIELDS, FIXED, ONLY, classifier_dropout, pooled_head, token_head
from longspan.hub.families.bert import restore as restore_dropout
from longspan.hub.tensor_names import rename
from longspan.nn.heads import Head


def adjust(options: dict[str, Any], given: Config) -> dict[str, Any]:
    """Their max_position_embeddings is the size of the table; our max_length is that of a text."""
    if options["padding"] is None:
        raise Unsupported("config.json: pad_token_id is null, and it is where positions begin; give it")
    before = options["padding"] + 1
    return {**options, "position_offset": before, "max_length": options["max_length"] - before}


def restore(record: dict[str, Any], options: Any) -> dict[str, Any]:
    rows = options.max_length + options.position_offset
    return {**restore_dropout(record, options), "max_position_embeddings": rows}


def head(task: str, options: Config, given: Config) -> Head:
    """RoBERTa's heads: classification has its own hidden layer; masked tokens always use GELU."""
    if task == "masked":
        return Head(task=task, activation="gelu", tied=bool(given.get("tie_word_embeddings", True)))
    if task == "choose":
        return Head(task=task, activation="tanh", dropout=options["dropout"])
    if task == "pool":
        return Head(task=task, activation="tanh", dropout=0.0)
    dropout = classifier_dropout(options, given)
    if task == "classify":
        return Head(task=task, activation="tanh", dropout=dropout, drop_input=True)
    return Head(task=task, dropout=dropout if task == "tag" else 0.0)


def _family(name: str, classes: str, vocabulary: int) -> Family:
    defaults = {"vocabulary": vocabulary, "padding": 1}
    return Family(
        name=name,
        model="encoder",
        base="roberta.",
        fields=[replace(item, default=defaults.get(item.ours, item.default)) for item in FIELDS],
        fixed={**FIXED, "count_real": True},
        only=ONLY,
        architectures={
            f"{classes}Model": ("pool",),
            f"{classes}ForMaskedLM": ("masked",),
            f"{classes}ForSequenceClassification": ("classify",),
            f"{classes}ForMultipleChoice": ("choose",),
            f"{classes}ForTokenClassification": ("tag",),
            f"{classes}ForQuestionAnswering": ("span",),
        },
        head=head,
        body=BODY,
        heads={
            "pool": (rename("heads.pool.dense", "pooler.dense", inside=True),),
            "masked": (
                rename("heads.masked.dense", "lm_head.dense"),
                rename("heads.masked.norm", "lm_head.layer_norm"),
                rename("heads.masked.bias", "lm_head.bias"),
                rename("heads.masked.weight", "lm_head.decoder.weight"),
            ),
            "classify": (
                rename("heads.classify.dense", "classifier.dense"),
                rename("heads.classify.out", "classifier.out_proj"),
            ),
            "choose": pooled_head("choose", "classifier"),
            "tag": token_head("tag", "classifier"),
            "span": token_head("span", "qa_outputs"),
        },
        ties={"lm_head.decoder.weight": "embeddings.word_embeddings.weight", "lm_head.decoder.bias": "lm_head.bias"},
        untied=("lm_head.decoder.weight", "lm_head.decoder.bias"),
        instead={"lm_head.bias": "lm_head.decoder.bias"},
        ignored=(r".*embeddings\.position_ids",),
        adjust=adjust,
        restore=restore,
    )


ROBERTA = _family("roberta", "Roberta", 50265)
CAMEMBERT = _family("camembert", "Camembert", 30522)
XLM_ROBERTA = _family("xlm-roberta", "XLMRoberta", 30522)
