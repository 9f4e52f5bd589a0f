"""ELECTRA (Clark et al. 2020): generator or discriminator, an encoder with its head; `models.electra` has both."""

from typing import Any

from longspan.errors import Unsupported
from longspan.hub.families.base import ACTIVATIONS, Config, Family, Field
from longspan.hub.families.bert import EMBEDDINGS, FIXED, ONLY, classifier_dropout, layers, token_head
from longspan.hub.families.bert import FIELDS as BERT_FIELDS
from longspan.hub.tensor_names import rename
from longspan.nn.heads import Head

# The default sizes are those of the small model.
SIZES = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
FIELDS = (
    Field("embedding_width", "embedding_size", 128),
    *(Field(item.ours, item.theirs, SIZES.get(item.theirs, item.default), item.values) for item in BERT_FIELDS),
)


def restore(record: dict[str, Any], options: Any) -> dict[str, Any]:
    """Without narrow embeddings their width is the model's, and there is no projection."""
    if options.embedding_projection and options.embedding_width in (None, options.width):
        raise Unsupported("an electra projects its embeddings only to another width: give no embedding_projection")
    record["embedding_size"] = options.embedding_width or options.width
    return record


def head(task: str, options: Config, given: Config) -> Head:
    """No pooler: a text is classified by its first token, through a layer with GELU."""
    dropout = classifier_dropout(options, given)
    if task == "masked":
        return Head(task=task, activation="gelu", tied=bool(given.get("tie_word_embeddings", True)))
    if task == "detect":
        return Head(task=task, activation=options["activation"], dropout=0.0)
    if task == "classify":
        return Head(task=task, activation="gelu", dropout=dropout, drop_input=True)
    if task == "choose":
        return _summary(given)
    return Head(task=task, dropout=dropout if task == "tag" else 0.0)


def _summary(given: Config) -> Head:
    """The head for multiple choice has its own keys in the configuration."""
    kind, project = given.get("summary_type", "first"), given.get("summary_use_proj", True)
    if kind != "first" or not project:
        what = f"summary_type is {kind!r}" if kind != "first" else f"summary_use_proj is {project!r}"
        raise Unsupported(f"config.json: {what}; texts are read here from the first token through a layer")
    activation, dropout = given.get("summary_activation", "gelu"), float(given.get("summary_last_dropout", 0.1))
    known = {**ACTIVATIONS, "tanh": "tanh"}
    if activation not in known:
        raise Unsupported(f"config.json: summary_activation is {activation!r}; it can be {', '.join(known)}")
    before = given.get("summary_first_dropout", 0.0)
    if before not in (0.0, dropout):
        raise Unsupported(f"config.json: summary_first_dropout is {before}; it can be 0 or the last one, {dropout}")
    return Head(task="choose", activation=known[activation], dropout=dropout, drop_input=before > 0)


ELECTRA = Family(
    name="electra",
    model="encoder",
    base="electra.",
    fields=FIELDS,
    fixed=FIXED,
    only=ONLY,
    architectures={
        "ElectraModel": (),
        "ElectraForPreTraining": ("detect",),
        "ElectraForMaskedLM": ("masked",),
        "ElectraForSequenceClassification": ("classify",),
        "ElectraForMultipleChoice": ("choose",),
        "ElectraForTokenClassification": ("tag",),
        "ElectraForQuestionAnswering": ("span",),
    },
    head=head,
    body=(
        *EMBEDDINGS,
        rename("embedding.project", "embeddings_project"),
        *layers("stack.blocks.*", "encoder.layer.*"),
    ),
    heads={
        "detect": (
            rename("heads.detect.dense", "discriminator_predictions.dense"),
            rename("heads.detect.out", "discriminator_predictions.dense_prediction"),
        ),
        "masked": (
            rename("heads.masked.dense", "generator_predictions.dense"),
            rename("heads.masked.norm", "generator_predictions.LayerNorm"),
            rename("heads.masked.bias", "generator_lm_head.bias"),
            rename("heads.masked.weight", "generator_lm_head.weight"),
        ),
        "classify": (
            rename("heads.classify.dense", "classifier.dense"),
            rename("heads.classify.out", "classifier.out_proj"),
        ),
        "choose": (
            rename("heads.choose.dense", "sequence_summary.summary"),
            rename("heads.choose.out", "classifier"),
        ),
        "tag": token_head("tag", "classifier"),
        "span": token_head("span", "qa_outputs"),
    },
    ties={"generator_lm_head.weight": "embeddings.word_embeddings.weight"},
    untied=("generator_lm_head.weight",),
    ignored=(r".*embeddings\.position_ids",),
    restore=restore,
)
