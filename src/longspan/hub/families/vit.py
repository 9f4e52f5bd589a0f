"""ViT (Dosovitskiy et al. 2021): an encoder over image patches with pre-norm and a class token."""

from typing import Any

from torch import Tensor

from longspan.errors import Unsupported
from longspan.hub.families.base import ACTIVATIONS, Config, Family, Field
from longspan.hub.tensor_names import Rule, rename
from longspan.nn.heads import Head
from longspan.nn.patches import pair

FIELDS = (
    Field("width", "hidden_size", 768),
    Field("layers", "num_hidden_layers", 12),
    Field("heads", "num_attention_heads", 12),
    Field("head_dim", "head_dim"),
    Field("hidden", "intermediate_size", 3072),
    Field("activation", "hidden_act", "gelu", ACTIVATIONS),
    Field("dropout", "hidden_dropout_prob", 0.0),
    Field("attention_dropout", "attention_probs_dropout_prob", 0.0),
    Field("init_std", "initializer_range", 0.02),
    Field("eps", "layer_norm_eps", 1e-12),
    Field("image_size", "image_size", 224),
    Field("patch_size", "patch_size", 16),
    Field("channels", "num_channels", 3),
    Field("query_bias", "qkv_bias", True),
)
POOLER = {**ACTIVATIONS, "tanh": "tanh"}


def layers(ours: str, theirs: str) -> tuple[Rule, ...]:
    """The tensors of ViT's layers: BERT's names, except for the norms."""
    attention, mixer = f"{theirs}.attention", f"{ours}.mixer"
    return (
        rename(f"{mixer}.project.q", f"{attention}.attention.query"),
        rename(f"{mixer}.project.k", f"{attention}.attention.key"),
        rename(f"{mixer}.project.v", f"{attention}.attention.value"),
        rename(f"{mixer}.out", f"{attention}.output.dense"),
        rename(f"{ours}.around_mixer.norm", f"{theirs}.layernorm_before"),
        rename(f"{ours}.feedforward.inner", f"{theirs}.intermediate.dense"),
        rename(f"{ours}.feedforward.outer", f"{theirs}.output.dense"),
        rename(f"{ours}.around_feedforward.norm", f"{theirs}.layernorm_after"),
    )


def _kernel(options: Any, ours: Tensor) -> tuple[int, ...]:
    """Their patch embedding is a convolution."""
    return (options.width, options.channels, *pair(options.patch_size, "patch_size"))


EMBEDDINGS = (
    rename("embedding.token", "embeddings.cls_token", shape=lambda options, ours: (1, 1, options.width)),
    rename("embedding.position.weight", "embeddings.position_embeddings", shape=lambda options, ours: (1, *ours.shape)),
    rename("embedding.linear.weight", "embeddings.patch_embeddings.projection.weight", shape=_kernel),
    rename("embedding.linear.bias", "embeddings.patch_embeddings.projection.bias"),
)


# The names of transformers 5's modules; its files keep the old ones, unless a state_dict was written.
SPELLINGS = (
    (r"(^|\.)layers\.(\d+)\.", r"\1encoder.layer.\2."),
    (r"\.attention\.q_proj\.", ".attention.attention.query."),
    (r"\.attention\.k_proj\.", ".attention.attention.key."),
    (r"\.attention\.v_proj\.", ".attention.attention.value."),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
    (r"\.mlp\.fc1\.", ".intermediate.dense."),
    (r"\.mlp\.fc2\.", ".output.dense."),
)


def head(task: str, options: Config, given: Config) -> Head:
    """Heads read the class token: directly for a label, through the pooler for a vector."""
    if task == "classify":
        return Head(task=task, dropout=0.0)
    name = given.get("pooler_act", "tanh")
    if name not in POOLER:
        raise Unsupported(f"config.json: pooler_act is {name!r}; of this, vit here can be {', '.join(POOLER)}")
    return Head(task=task, activation=POOLER[name], inner=given.get("pooler_output_size") or None)


def restore(record: dict[str, Any], options: Any) -> dict[str, Any]:
    """Removes unset keys, and writes the pooler's settings."""
    if options.head_dim is None:
        del record["head_dim"]
    if options.query_bias is None:
        record["qkv_bias"] = options.bias
    for head in options.tasks or ():
        if head.task == "pool":
            activation = next((name for name, ours in POOLER.items() if ours == head.activation), None)
            if activation is None or head.pool != "first":
                raise Unsupported("the pooler there is a layer with an activation on the class token")
            record |= {"pooler_act": activation, "pooler_output_size": head.inner or options.width}
    return record


BODY = (*EMBEDDINGS, *layers("stack.blocks.*", "encoder.layer.*"), rename("stack.norm", "layernorm"))
HEADS = {
    "pool": (rename("heads.pool.dense", "pooler.dense", inside=True),),
    "classify": (rename("heads.classify.out", "classifier"),),
}
VIT = Family(
    name="vit",
    model="vit",
    base="vit.",
    fields=FIELDS,
    fixed={"norm_position": "pre", "position": "learned", "init": "normal", "class_token": True},
    architectures={"ViTModel": ("pool",), "ViTForImageClassification": ("classify",)},
    head=head,
    body=BODY,
    heads=HEADS,
    spellings=SPELLINGS,
    restore=restore,
)
