"""BERT (Devlin et al. 2019): an encoder with segments, and heads for masked tokens and sentence pairs."""

from typing import Any

from longspan.hub.families.base import ACTIVATIONS, Config, Family, Field
from longspan.hub.tensor_names import Rule, rename
from longspan.nn.heads import Head

FIELDS = (
    Field("vocabulary", "vocab_size", 30522),
    Field("width", "hidden_size", 768),
    Field("layers", "num_hidden_layers", 12),
    Field("heads", "num_attention_heads", 12),
    Field("hidden", "intermediate_size", 3072),
    Field("activation", "hidden_act", "gelu", ACTIVATIONS),
    Field("dropout", "hidden_dropout_prob", 0.1),
    Field("attention_dropout", "attention_probs_dropout_prob", 0.1),
    Field("max_length", "max_position_embeddings", 512),
    Field("segments", "type_vocab_size", 2),
    Field("init_std", "initializer_range", 0.02),
    Field("eps", "layer_norm_eps", 1e-12),
    Field("padding", "pad_token_id", 0),
)
# Options that all encoders like BERT share.
FIXED: Config = {
    "norm_position": "post",
    "position": "learned",
    "embedding_norm": True,
    "scale": False,
    "init": "normal",
}
ONLY = {"position_embedding_type": ("absolute",), "is_decoder": (False,), "add_cross_attention": (False,)}


def layers(ours: str, theirs: str) -> tuple[Rule, ...]:
    """The tensors of BERT's layers, which several families have under the same names."""
    attention, mixer = f"{theirs}.attention", f"{ours}.mixer"
    return (
        rename(f"{mixer}.project.q", f"{attention}.self.query"),
        rename(f"{mixer}.project.k", f"{attention}.self.key"),
        rename(f"{mixer}.project.v", f"{attention}.self.value"),
        rename(f"{mixer}.out", f"{attention}.output.dense"),
        rename(f"{ours}.around_mixer.norm", f"{attention}.output.LayerNorm"),
        rename(f"{ours}.feedforward.inner", f"{theirs}.intermediate.dense"),
        rename(f"{ours}.feedforward.outer", f"{theirs}.output.dense"),
        rename(f"{ours}.around_feedforward.norm", f"{theirs}.output.LayerNorm"),
    )


EMBEDDINGS = (
    rename("embedding.weight", "embeddings.word_embeddings.weight"),
    rename("embedding.position.weight", "embeddings.position_embeddings.weight"),
    rename("embedding.segment", "embeddings.token_type_embeddings.weight"),
    rename("embedding.norm", "embeddings.LayerNorm"),
)
BODY = (*EMBEDDINGS, *layers("stack.blocks.*", "encoder.layer.*"))


def pooled_head(task: str, out: str, pooler: str = "pooler.dense") -> tuple[Rule, ...]:
    """A head for whole texts whose hidden layer is part of the body in Hugging Face's model."""
    return (rename(f"heads.{task}.dense", pooler, inside=True), rename(f"heads.{task}.out", out))


def token_head(task: str, out: str) -> tuple[Rule, ...]:
    """A head for each token."""
    return (rename(f"heads.{task}.out", out),)


def classifier_dropout(options: Config, given: Config) -> float:
    """The dropout of classification heads; by default the body's."""
    rate: Any = given.get("classifier_dropout")
    return float(options["dropout"] if rate is None else rate)


def restore(record: dict[str, Any], options: Any) -> dict[str, Any]:
    """Writes the dropout of a classification head if it differs from the body's."""
    rates = [head.dropout for head in options.tasks or () if head.task in ("classify", "regress", "choose", "tag")]
    return record if rates[:1] in ([], [options.dropout]) else {**record, "classifier_dropout": rates[0]}


def head(task: str, options: Config, given: Config) -> Head:
    """BERT's heads: a text is classified by its first token, through the pooler, a layer with tanh."""
    if task == "masked":
        return Head(task=task, activation=options["activation"], tied=bool(given.get("tie_word_embeddings", True)))
    dropout = classifier_dropout(options, given)
    if task in ("tag", "span"):
        return Head(task=task, dropout=dropout if task == "tag" else 0.0)
    return Head(task=task, activation="tanh", dropout=0.0 if task == "pair" else dropout)


BERT = Family(
    name="bert",
    model="encoder",
    base="bert.",
    fields=FIELDS,
    fixed=FIXED,
    only=ONLY,
    architectures={
        "BertModel": ("pool",),
        "BertForPreTraining": ("masked", "pair"),
        "BertForMaskedLM": ("masked",),
        "BertForNextSentencePrediction": ("pair",),
        "BertForSequenceClassification": ("classify",),
        "BertForMultipleChoice": ("choose",),
        "BertForTokenClassification": ("tag",),
        "BertForQuestionAnswering": ("span",),
    },
    head=head,
    body=BODY,
    heads={
        "pool": (rename("heads.pool.dense", "pooler.dense", inside=True),),
        "masked": (
            rename("heads.masked.dense", "cls.predictions.transform.dense"),
            rename("heads.masked.norm", "cls.predictions.transform.LayerNorm"),
            rename("heads.masked.bias", "cls.predictions.bias"),
            rename("heads.masked.weight", "cls.predictions.decoder.weight"),
        ),
        "pair": pooled_head("pair", "cls.seq_relationship"),
        "classify": pooled_head("classify", "classifier"),
        "choose": pooled_head("choose", "classifier"),
        "tag": token_head("tag", "classifier"),
        "span": token_head("span", "qa_outputs"),
    },
    ties={
        "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    untied=("cls.predictions.decoder.weight", "cls.predictions.decoder.bias"),
    instead={"cls.predictions.bias": "cls.predictions.decoder.bias"},
    ignored=(r".*embeddings\.position_ids",),
    restore=restore,
)
