"""ALBERT (Lan et al. 2020): BERT with narrow embeddings and layers that share their weights."""

from typing import Any

from longspan.errors import Unsupported
from longspan.hub.families.base import ACTIVATIONS, Config, Family, Field
from longspan.hub.families.bert import EMBEDDINGS, FIXED, ONLY, pooled_head, token_head
from longspan.hub.tensor_names import Rule, rename
from longspan.nn.heads import Head

FIELDS = (
    Field("vocabulary", "vocab_size", 30000),
    Field("embedding_width", "embedding_size", 128),
    Field("width", "hidden_size", 4096),
    Field("layers", "num_hidden_layers", 12),
    Field("groups", "num_hidden_groups", 1),
    Field("heads", "num_attention_heads", 64),
    Field("hidden", "intermediate_size", 16384),
    Field("activation", "hidden_act", "gelu_new", ACTIVATIONS),
    Field("dropout", "hidden_dropout_prob", 0.0),
    Field("attention_dropout", "attention_probs_dropout_prob", 0.0),
    Field("max_length", "max_position_embeddings", 512),
    Field("segments", "type_vocab_size", 2),
    Field("init_std", "initializer_range", 0.02),
    Field("eps", "layer_norm_eps", 1e-12),
    Field("padding", "pad_token_id", 0),
)


def layers(ours: str, theirs: str) -> tuple[Rule, ...]:
    """The tensors of a group's one layer."""
    attention, mixer = f"{theirs}.attention", f"{ours}.mixer"
    return (
        rename(f"{mixer}.project.q", f"{attention}.query"),
        rename(f"{mixer}.project.k", f"{attention}.key"),
        rename(f"{mixer}.project.v", f"{attention}.value"),
        rename(f"{mixer}.out", f"{attention}.dense"),
        rename(f"{ours}.around_mixer.norm", f"{attention}.LayerNorm"),
        rename(f"{ours}.feedforward.inner", f"{theirs}.ffn"),
        rename(f"{ours}.feedforward.outer", f"{theirs}.ffn_output"),
        rename(f"{ours}.around_feedforward.norm", f"{theirs}.full_layer_layer_norm"),
    )


def adjust(options: dict[str, Any], given: Config) -> dict[str, Any]:
    """Refuses uneven groups, such as 14 for 18 layers, that Hugging Face's rounding assigns differently."""
    count, groups = options["layers"], options["groups"]
    if any(int(layer / (count / groups)) != layer * groups // count for layer in range(count)):
        raise Unsupported(
            f"config.json: num_hidden_groups is {groups} for {count} layers, which rounding there shifts by a layer; "
            "give a number that divides the layers"
        )
    return options


def restore(record: dict[str, Any], options: Any) -> dict[str, Any]:
    """Without sharing, one group per layer; without narrow embeddings, their width is the model's."""
    if options.groups is not None and options.groups < options.layers and options.share != "all":
        raise Unsupported(f"layers of an albert share all of their weights or none, not share={options.share!r}")
    if not options.embedding_projection and options.embedding_width in (None, options.width):
        raise Unsupported("an albert projects its embeddings at any width: build it with embedding_projection=True")
    record["embedding_size"] = options.embedding_width or options.width
    record["num_hidden_groups"] = options.groups or options.layers
    return record


def head(task: str, options: Config, given: Config) -> Head:
    """BERT's heads; the one for masked tokens projects to the width of the embeddings."""
    if task == "masked":
        return Head(task=task, activation=options["activation"], tied=bool(given.get("tie_word_embeddings", True)))
    dropout = float(given.get("classifier_dropout_prob", 0.1))
    if task in ("tag", "span"):
        return Head(task=task, dropout=dropout if task == "tag" else 0.0)
    return Head(task=task, activation="tanh", dropout=dropout)


ALBERT = Family(
    name="albert",
    model="encoder",
    base="albert.",
    fields=FIELDS,
    fixed={**FIXED, "embedding_projection": True},
    only={**ONLY, "inner_group_num": (1,)},
    architectures={
        "AlbertModel": ("pool",),
        "AlbertForPreTraining": ("masked", "pair"),
        "AlbertForMaskedLM": ("masked",),
        "AlbertForSequenceClassification": ("classify",),
        "AlbertForMultipleChoice": ("choose",),
        "AlbertForTokenClassification": ("tag",),
        "AlbertForQuestionAnswering": ("span",),
    },
    head=head,
    body=(
        *EMBEDDINGS,
        rename("embedding.project", "encoder.embedding_hidden_mapping_in"),
        *layers("stack.blocks.*", "encoder.albert_layer_groups.*.albert_layers.0"),
    ),
    heads={
        "pool": (rename("heads.pool.dense", "pooler", inside=True),),
        "masked": (
            rename("heads.masked.dense", "predictions.dense"),
            rename("heads.masked.norm", "predictions.LayerNorm"),
            rename("heads.masked.bias", "predictions.bias"),
            rename("heads.masked.weight", "predictions.decoder.weight"),
        ),
        "pair": pooled_head("pair", "sop_classifier.classifier", "pooler"),
        "classify": pooled_head("classify", "classifier", "pooler"),
        "choose": pooled_head("choose", "classifier", "pooler"),
        "tag": token_head("tag", "classifier"),
        "span": token_head("span", "qa_outputs"),
    },
    ties={
        "predictions.decoder.weight": "embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    untied=("predictions.decoder.weight", "predictions.decoder.bias"),
    instead={"predictions.bias": "predictions.decoder.bias"},
    ignored=(r".*embeddings\.position_ids",),
    adjust=adjust,
    restore=restore,
)
