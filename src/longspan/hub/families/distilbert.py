"""DistilBERT (Sanh et al. 2019): half of BERT's layers, without segments and without a pooler.

In Hugging Face's training, dropout is on the output of the feed-forward layer only; here also on that of attention.
"""

from typing import Any

from longspan.hub.families.base import ACTIVATIONS, Config, Family, Field
from longspan.hub.families.bert import FIXED
from longspan.hub.tensor_names import rename
from longspan.nn.heads import Head

FIELDS = (
    Field("vocabulary", "vocab_size", 30522),
    Field("width", "dim", 768, aliases=("hidden_size",)),
    Field("layers", "n_layers", 6, aliases=("num_hidden_layers",)),
    Field("heads", "n_heads", 12, aliases=("num_attention_heads",)),
    Field("hidden", "hidden_dim", 3072),
    Field("activation", "activation", "gelu", ACTIVATIONS),
    Field("dropout", "dropout", 0.1),
    Field("attention_dropout", "attention_dropout", 0.1),
    # With `sinusoidal_pos_embds` the table was initialised with sinusoids; the file has it anyway.
    Field("max_length", "max_position_embeddings", 512),
    Field("init_std", "initializer_range", 0.02),
    Field("padding", "pad_token_id", 0),
)
_LAYER, _OURS = "transformer.layer.*", "stack.blocks.*"


def head(task: str, options: Config, given: Config) -> Head:
    """DistilBERT's heads: a text is classified by its first token, through the head's own layer with ReLU."""
    if task == "masked":
        return Head(task=task, activation=options["activation"], tied=bool(given.get("tie_word_embeddings", True)))
    if task == "tag":
        return Head(task=task, dropout=options["dropout"])
    if task == "span":
        return Head(task=task, dropout=given.get("qa_dropout", 0.1))
    return Head(task=task, activation="relu", dropout=given.get("seq_classif_dropout", 0.2))


def restore(record: dict[str, Any], options: Any) -> dict[str, Any]:
    """Writes the dropout of heads that have their own."""
    texts = dict.fromkeys(("classify", "regress", "choose"), "seq_classif_dropout")
    keys = {**texts, "span": "qa_dropout"}
    rates = {keys[head.task]: head.dropout for head in options.tasks or () if head.task in keys}
    return {**record, **rates}


DISTILBERT = Family(
    name="distilbert",
    model="encoder",
    base="distilbert.",
    fields=FIELDS,
    fixed={**FIXED, "eps": 1e-12},
    architectures={
        "DistilBertModel": (),
        "DistilBertForMaskedLM": ("masked",),
        "DistilBertForSequenceClassification": ("classify",),
        "DistilBertForMultipleChoice": ("choose",),
        "DistilBertForTokenClassification": ("tag",),
        "DistilBertForQuestionAnswering": ("span",),
    },
    head=head,
    body=(
        rename("embedding.weight", "embeddings.word_embeddings.weight"),
        rename("embedding.position.weight", "embeddings.position_embeddings.weight"),
        rename("embedding.norm", "embeddings.LayerNorm"),
        rename(f"{_OURS}.mixer.project.q", f"{_LAYER}.attention.q_lin"),
        rename(f"{_OURS}.mixer.project.k", f"{_LAYER}.attention.k_lin"),
        rename(f"{_OURS}.mixer.project.v", f"{_LAYER}.attention.v_lin"),
        rename(f"{_OURS}.mixer.out", f"{_LAYER}.attention.out_lin"),
        rename(f"{_OURS}.around_mixer.norm", f"{_LAYER}.sa_layer_norm"),
        rename(f"{_OURS}.feedforward.inner", f"{_LAYER}.ffn.lin1"),
        rename(f"{_OURS}.feedforward.outer", f"{_LAYER}.ffn.lin2"),
        rename(f"{_OURS}.around_feedforward.norm", f"{_LAYER}.output_layer_norm"),
    ),
    heads={
        "masked": (
            rename("heads.masked.dense", "vocab_transform"),
            rename("heads.masked.norm", "vocab_layer_norm"),
            rename("heads.masked.bias", "vocab_projector.bias"),
            rename("heads.masked.weight", "vocab_projector.weight"),
        ),
        "classify": (rename("heads.classify.dense", "pre_classifier"), rename("heads.classify.out", "classifier")),
        "choose": (rename("heads.choose.dense", "pre_classifier"), rename("heads.choose.out", "classifier")),
        "tag": (rename("heads.tag.out", "classifier"),),
        "span": (rename("heads.span.out", "qa_outputs"),),
    },
    ties={"vocab_projector.weight": "embeddings.word_embeddings.weight"},
    untied=("vocab_projector.weight",),
    ignored=(r".*embeddings\.position_ids",),
    restore=restore,
)
