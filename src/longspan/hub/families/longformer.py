"""Longformer (Beltagy et al. 2020): RoBERTa's encoder with a sliding window, and global tokens with projections of
their own."""

from collections.abc import Sequence
from typing import Any

from longspan.errors import InvalidInput, Unsupported
from longspan.hub.families import bert
from longspan.hub.family import Config, Family, Field
from longspan.hub.names import rename
from longspan.models.body import spread
from longspan.nn.heads import Head

_DEFAULTS = {"pad_token_id": 1}
FIELDS = (
    *(Field(each.ours, each.theirs, _DEFAULTS.get(each.theirs, each.default), each.values) for each in bert.FIELDS),
    Field("separator", "sep_token_id", 2),
)
# Where a head has tokens that are global, unless the caller says which. Heads without a line here have none.
GLOBAL_TOKENS = {"classify": "first", "span": "question", "choose": "answer"}


def adjust(found: dict[str, Any], given: Config) -> dict[str, Any]:
    """Their windows count both sides; their positions begin behind padding's."""
    windows = given.get("attention_window", 512)
    layers = found["layers"]
    windows = [windows] * layers if isinstance(windows, int) else windows
    if len(windows) != layers or any(window < 2 or window % 2 for window in windows):
        raise InvalidInput(
            f"config.json: attention_window must be even, one number or one for each of {layers} layers, not {windows}"
        )
    found["attention"] = [{"name": "longformer", "window": window // 2} for window in windows]
    found["position_offset"] = found["padding"] + 1
    found["max_length"] -= found["position_offset"]
    return found


def restore(found: dict[str, Any], options: Any) -> dict[str, Any]:
    if options.position_offset != options.padding + 1 or not options.count_real:
        raise Unsupported("longformer's positions count real tokens, from padding + 1 on; this model's do not")
    found["max_position_embeddings"] = options.max_length + options.position_offset
    found["attention_window"] = [
        _window(setting) for setting in spread(options.attention, options.layers, "longformer")
    ]
    return found


def _window(setting: Any) -> int:
    if setting.name != "longformer" or setting.options.get("dilation", 1) != 1:
        raise Unsupported(f"longformer there has windows without gaps in all layers; a layer of this is {setting!r}")
    return 2 * int(setting.options.get("window", 256))


def head(task: str, options: Config, given: Config) -> Head:
    """RoBERTa's heads; multiple choice and the body alone have BERT's pooler."""
    marked, dropout = GLOBAL_TOKENS.get(task), options["dropout"]
    if task == "masked":
        return Head(task=task, activation="gelu", tied=bool(given.get("tie_word_embeddings", True)))
    if task in ("tag", "span"):
        return Head(task=task, dropout=dropout if task == "tag" else 0.0, global_tokens=marked)
    return Head(task=task, activation="tanh", dropout=dropout, drop_input=task == "classify", global_tokens=marked)


def _projections() -> Sequence[Any]:
    """Of global tokens, which BERT's layers have not."""
    return [
        rename(f"stack.blocks.*.mixer.extra.global_{ours}", f"encoder.layer.*.attention.self.{theirs}_global")
        for ours, theirs in (("q", "query"), ("k", "key"), ("v", "value"))
    ]


LONGFORMER = Family(
    name="longformer",
    model="encoder",
    base="longformer.",
    fields=FIELDS,
    fixed={**bert.FIXED, "count_real": True},
    only={"is_decoder": (False,), "add_cross_attention": (False,)},
    architectures={
        "LongformerModel": ("pool",),
        "LongformerForMaskedLM": ("masked",),
        "LongformerForSequenceClassification": ("classify",),
        "LongformerForMultipleChoice": ("choose",),
        "LongformerForTokenClassification": ("tag",),
        "LongformerForQuestionAnswering": ("span",),
    },
    head=head,
    body=(*bert.BODY, *_projections()),
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
        "choose": bert.pooled_head("choose", "classifier"),
        "tag": bert.token_head("tag", "classifier"),
        "span": bert.token_head("span", "qa_outputs"),
    },
    ties={
        "lm_head.decoder.weight": "embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    untied=("lm_head.decoder.weight",),
    ignored=(r".*embeddings\.position_ids",),
    adjust=adjust,
    restore=restore,
)
