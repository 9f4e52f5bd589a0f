"""Nyströmformer (Xiong et al. 2021): BERT with landmarks instead of full attention, and a convolution of the values.

Files say how many landmarks there are, and for which length. If the two are equal, as in the released model of 512
tokens, the release computes full attention for texts of any length: that is `landmarks` = max_length here.
"""

from typing import Any

from torch import Tensor

from longspan.attention.config import AttentionConfig
from longspan.errors import Unsupported
from longspan.hub.families.base import Config, Family, Field
from longspan.hub.families.bert import BODY, FIELDS, FIXED, classifier_dropout, restore, token_head
from longspan.hub.tensor_names import rename
from longspan.nn.heads import Head

DEFAULTS = {
    "vocabulary": 30000,
    "activation": "gelu_new",
    "max_length": 510,
    "eps": 1e-5,
    "padding": 1,
}


def head(task: str, options: Config, given: Config) -> Head:
    """A text is classified by its first token, through a hidden layer of the head's own."""
    if task == "masked":
        return Head(task=task, activation=options["activation"], tied=bool(given.get("tie_word_embeddings", True)))
    if task == "choose":
        return Head(task=task, activation="relu", dropout=0.0)
    if task == "classify":
        return Head(task=task, activation=options["activation"], dropout=options["dropout"], drop_input=True)
    return Head(task=task, dropout=classifier_dropout(options, given) if task == "tag" else 0.0)


def _adjust(options: dict[str, Any], given: Config) -> dict[str, Any]:
    landmarks, length = int(given.get("num_landmarks", 64)), int(given.get("segment_means_seq_len", 64))
    kernel = given.get("conv_kernel_size", 65)
    if length != landmarks and length % landmarks:
        raise Unsupported(f"config.json: segment_means_seq_len is {length}, no multiple of num_landmarks {landmarks}")
    if kernel is not None and int(kernel) % 2 == 0:
        raise Unsupported(f"config.json: conv_kernel_size is {kernel}; it must be odd, or null")
    count = options["max_length"] if landmarks == length else landmarks
    options["attention"] = (AttentionConfig("nystrom", landmarks=count, kernel=int(kernel or 0)),)
    return options


def _restore(record: dict[str, Any], options: Any) -> dict[str, Any]:
    settings = {(setting.name, *sorted(setting.options.items())) for setting in options.attention}
    if len(settings) != 1 or options.attention[0].name != "nystrom":
        raise Unsupported("a nystromformer has the same nystrom attention in every layer")
    given = options.attention[0].options
    landmarks, kernel = int(given.get("landmarks", 64)), int(given.get("kernel", 33))
    if not kernel:
        raise Unsupported("a nystromformer has a convolution of the values; give nystrom a kernel")
    full = landmarks >= options.max_length
    sizes = {"num_landmarks": landmarks, "segment_means_seq_len": landmarks if full else options.max_length}
    return {**restore(record, options), **sizes, "conv_kernel_size": kernel}


def _column(_: Any, filters: Tensor) -> tuple[int, ...]:
    """Their filters are those of a convolution over one channel of width 1."""
    return filters.shape[0], 1, filters.shape[1], 1


NYSTROMFORMER = Family(
    name="nystromformer",
    model="encoder",
    base="nystromformer.",
    fields=[
        Field(item.ours, item.theirs, DEFAULTS.get(item.ours, item.default), item.values, item.aliases)
        for item in FIELDS
    ],
    fixed={**FIXED, "position_offset": 2},
    only={"add_cross_attention": (False,), "inv_coeff_init_option": (False,), "is_decoder": (False,)},
    architectures={
        "NystromformerModel": (),
        "NystromformerForMaskedLM": ("masked",),
        "NystromformerForSequenceClassification": ("classify",),
        "NystromformerForMultipleChoice": ("choose",),
        "NystromformerForTokenClassification": ("tag",),
        "NystromformerForQuestionAnswering": ("span",),
    },
    head=head,
    body=(
        *BODY,
        rename("stack.blocks.*.mixer.mechanism.filters", "encoder.layer.*.attention.self.conv.weight", shape=_column),
    ),
    heads={
        "masked": (
            rename("heads.masked.dense", "cls.predictions.transform.dense"),
            rename("heads.masked.norm", "cls.predictions.transform.LayerNorm"),
            rename("heads.masked.bias", "cls.predictions.bias"),
            rename("heads.masked.weight", "cls.predictions.decoder.weight"),
        ),
        "classify": (
            rename("heads.classify.dense", "classifier.dense"),
            rename("heads.classify.out", "classifier.out_proj"),
        ),
        "choose": (rename("heads.choose.dense", "pre_classifier"), rename("heads.choose.out", "classifier")),
        "tag": token_head("tag", "classifier"),
        "span": token_head("span", "qa_outputs"),
    },
    ties={
        "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    untied=("cls.predictions.decoder.weight", "cls.predictions.decoder.bias"),
    instead={"cls.predictions.bias": "cls.predictions.decoder.bias"},
    ignored=(r".*embeddings\.(position_ids|token_type_ids)",),
    adjust=_adjust,
    restore=_restore,
)
