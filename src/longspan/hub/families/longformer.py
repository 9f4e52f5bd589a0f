"""Longformer (Beltagy et al. 2020): RoBERTa with a sliding window, and global tokens with separate projections."""

from dataclasses import replace
from typing import Any

from longspan.errors import InvalidInput
from longspan.hub.families import roberta
from longspan.hub.families.base import Config, Family, Field
from longspan.hub.tensor_names import rename
from longspan.models.body import spread
from longspan.nn.heads import Head

ROBERTA = roberta.ROBERTA
# The default global tokens of each head; other heads have none.
GLOBAL_TOKENS = {"classify": "first", "span": "question", "choose": "answer"}


def adjust(options: dict[str, Any], given: Config) -> dict[str, Any]:
    """Their window counts both sides, ours one."""
    windows, layers = given.get("attention_window", 512), options["layers"]
    windows = [windows] * layers if isinstance(windows, int) else windows
    if len(windows) != layers or any(window < 2 or window % 2 for window in windows):
        raise InvalidInput(
            f"config.json: attention_window must be even, one number or one for each of {layers} layers, not {windows}"
        )
    options["attention"] = [{"name": "longformer", "window": window // 2} for window in windows]
    return roberta.adjust(options, given)


def restore(record: dict[str, Any], options: Any) -> dict[str, Any]:
    settings = spread(options.attention, options.layers, "longformer")
    record["attention_window"] = [2 * int(setting.options.get("window", 256)) for setting in settings]
    record["max_position_embeddings"] = options.max_length + options.position_offset
    return record


def head(task: str, options: Config, given: Config) -> Head:
    """RoBERTa's, all of them with the body's dropout."""
    base = roberta.head(task, options, {**given, "classifier_dropout": None})
    return replace(base, global_tokens=GLOBAL_TOKENS.get(task))


LONGFORMER = Family(
    name="longformer",
    model="encoder",
    base="longformer.",
    fields=(
        *(replace(item, default=30522) if item.ours == "vocabulary" else item for item in ROBERTA.fields),
        Field("separator", "sep_token_id", 2),
    ),
    fixed=ROBERTA.fixed,
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
    body=(
        *ROBERTA.body,
        *(
            rename(f"stack.blocks.*.mixer.extra.global_{ours}", f"encoder.layer.*.attention.self.{theirs}_global")
            for ours, theirs in (("q", "query"), ("k", "key"), ("v", "value"))
        ),
    ),
    heads=ROBERTA.heads,
    ties=ROBERTA.ties,
    untied=ROBERTA.untied,
    instead=ROBERTA.instead,
    ignored=ROBERTA.ignored,
    adjust=adjust,
    restore=restore,
)
