"""What Llama and its many relatives share: configuration keys, tensor names, heads."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from longspan.errors import Unsupported
from longspan.hub.families.base import Config, Family, Field
from longspan.hub.families.gpt import token_dropout
from longspan.hub.families.rope import THETA, both_spellings, read_rope, read_scaling, write_rope
from longspan.hub.tensor_names import Rule, rename
from longspan.nn.heads import Head

GATES = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_pytorch_tanh": "geglu_tanh",
    "gelu_new": "geglu_tanh",
    "relu": "reglu",
    "sigmoid": "glu",
}
FIELDS: Mapping[str, Field] = {
    field.theirs: field
    for field in (
        Field("vocabulary", "vocab_size", 32000),
        Field("width", "hidden_size", 4096),
        Field("layers", "num_hidden_layers", 32),
        Field("heads", "num_attention_heads", 32),
        Field("kv_heads", "num_key_value_heads"),
        Field("head_dim", "head_dim"),
        Field("hidden", "intermediate_size", 11008),
        Field("activation", "hidden_act", "silu", GATES),
        Field("max_length", "max_position_embeddings", 2048),
        Field("eps", "rms_norm_eps", 1e-6),
        Field("bias", "mlp_bias", False),
        Field("query_bias", "attention_bias", False),
        Field("attention_dropout", "attention_dropout", 0.0),
        Field("init_std", "initializer_range", 0.02),
        Field("padding", "pad_token_id"),
        Field("tied", "tie_word_embeddings", False),
    )
}
FIXED = {
    "norm_position": "pre",
    "norm": "rms",
    "position": "rotary",
    "scale": False,
    "dropout": 0.0,
    "init": "normal",
}
EMBEDDING = rename("embedding.weight", "embed_tokens.weight")
QKV = tuple(rename(f"stack.blocks.*.mixer.project.{part}", f"layers.*.self_attn.{part}_proj") for part in "qkv")
QK_NORMS = tuple(rename(f"stack.blocks.*.mixer.norms.{part}", f"layers.*.self_attn.{part}_norm") for part in "qk")
OUT = rename("stack.blocks.*.mixer.out", "layers.*.self_attn.o_proj")
GATED = (
    rename("stack.blocks.*.feedforward.inner", ("layers.*.mlp.gate_proj", "layers.*.mlp.up_proj")),
    rename("stack.blocks.*.feedforward.outer", "layers.*.mlp.down_proj"),
)
PRE_NORMS = (
    rename("stack.blocks.*.around_mixer.norm", "layers.*.input_layernorm"),
    rename("stack.blocks.*.around_feedforward.norm", "layers.*.post_attention_layernorm"),
)
LAST_NORM = rename("stack.norm", "norm")
BODY = (EMBEDDING, *QKV, OUT, *GATED, *PRE_NORMS, LAST_NORM)
HEADS = {
    "classify": (rename("heads.classify.out", "score"),),
    "tag": (rename("heads.tag.out", "score"),),
    "span": (rename("heads.span.out", "qa_outputs"),),
}
CLASSES = {
    "SequenceClassification": "classify",
    "TokenClassification": "tag",
    "QuestionAnswering": "span",
}
Adjust = Callable[[dict[str, Any], Config], dict[str, Any]]
Restore = Callable[[dict[str, Any], Any], dict[str, Any]]


def head(task: str, options: Config, given: Config) -> Head:
    """A text is classified by its last real token."""
    if task == "tag":
        return Head(task=task, dropout=token_dropout(given), bias=bool(given.get("token_classification_bias", True)))
    return Head(task=task, pool="last", dropout=0.0, bias=task != "classify")


def fields(without: Sequence[str] = (), **defaults: Any) -> tuple[Field, ...]:
    """Llama's keys with a family's defaults; `without` lists those that it does not have."""
    unknown = {*without, *defaults} - {*FIELDS}
    assert not unknown, unknown
    return tuple(
        Field(field.ours, key, defaults.get(key, field.default), field.values)
        for key, field in FIELDS.items()
        if key not in without
    )


def plain_rope(theta: float = THETA) -> tuple[Adjust, Restore]:
    """Reading and writing of rotary settings that are the same in all layers."""

    def adjust(options: dict[str, Any], given: Config) -> dict[str, Any]:
        rope = read_rope(given, theta)
        return {
            **_padded(options),
            "rotary_base": float(rope["rope_theta"]),
            "rotary_scaling": read_scaling(rope, options["max_length"]),
        }

    def restore(record: dict[str, Any], options: Any) -> dict[str, Any]:
        return {**_sized(record), **both_spellings(write_rope(options.rotary_base, options.rotary_scaling))}

    return adjust, restore


def _sized(record: dict[str, Any]) -> dict[str, Any]:
    """A head_dim of null is left out: some classes there calculate with whatever the key says."""
    return {key: value for key, value in record.items() if key != "head_dim" or value is not None}


def _padded(options: dict[str, Any]) -> dict[str, Any]:
    """Padding of -1, in the first files, means none."""
    padding = options["padding"]
    return {**options, "padding": padding if padding is not None and padding >= 0 else None}


def same_biases(options: dict[str, Any]) -> dict[str, Any]:
    """The output layer of attention has a bias if the others have."""
    return {**options, "output_bias": options["query_bias"]}


def write_biases(record: dict[str, Any], options: Any, family: str) -> dict[str, Any]:
    """`attention_bias` for all four layers of attention."""
    into, out = (options.bias if bias is None else bias for bias in (options.query_bias, options.output_bias))
    if into != out:
        raise Unsupported(
            f"{family}'s attention has all its biases or none, and this model has {into} before, {out} after"
        )
    return {**record, "attention_bias": into}


def llama_like(
    name: str,
    prefix: str,
    *,
    fields: Sequence[Field],
    adjust: Adjust,
    restore: Restore,
    classes: Sequence[str] = tuple(CLASSES),
    alone: str | None = None,
    named: Mapping[str, str] | None = None,
    bases: Mapping[str, str] | None = None,
    fixed: Config | None = None,
    only: Mapping[str, Sequence[Any]] | None = None,
    partial: bool = False,
    body: Sequence[Rule] = BODY,
    tied: bool = False,
) -> Family:
    """A relative of Llama; its classes are called `prefix`For…, those for tasks are of the kinds `classes`.

    `named` gives classes that are called otherwise, by kind; `only` adds keys with few supported values. `partial`:
    it may rotate a part of each head's features.
    """
    alone = f"{prefix}Model" if alone is None else alone
    calls = {kind: (named or {}).get(kind, f"{prefix}For{kind}") for kind in classes}
    return Family(
        name=name,
        model="decoder",
        base="model.",
        bases=bases or {},
        fields=fields,
        fixed={**FIXED, **(fixed or {})},
        only={**({} if partial else {"partial_rotary_factor": (1.0, None)}), **(only or {})},
        architectures={
            f"{prefix}ForCausalLM": (),
            alone: (),
            **{calls[kind]: (CLASSES[kind],) for kind in classes},
        },
        alone=alone,
        head=head,
        body=body,
        output=(rename("head.weight", "lm_head.weight"),),
        speakers=(f"{prefix}ForCausalLM",),
        heads={CLASSES[kind]: HEADS[CLASSES[kind]] for kind in classes},
        ties={"lm_head.weight": "embed_tokens.weight"},
        untied=("lm_head.weight",),
        tied=tied,
        ignored=(r".*rotary_emb\.inv_freq",),
        adjust=adjust,
        restore=restore,
    )


__all__ = [
    "BODY", "EMBEDDING", "FIELDS", "GATED", "GATES", "LAST_NORM", "OUT", "PRE_NORMS", "QKV", "QK_NORMS",
    "fields", "head", "llama_like", "plain_rope", "same_biases", "write_biases",
]  # fmt: skip
