"""GPT-NeoX (Black et al. 2022) and Pythia: attention and feed-forward layer side by side, a quarter of a head rotated.

One matrix holds query, key and value of the first head, then those of the second, and so on.
"""

from dataclasses import replace
from typing import Any

from longspan.errors import Unsupported
from longspan.hub.families.base import ACTIVATIONS, Config, Family, Field
from longspan.hub.families.gpt import token_dropout
from longspan.hub.families.rope import both_spellings, read_rope, read_scaling, write_rope
from longspan.hub.tensor_names import rename
from longspan.nn.heads import Head

BLOCK, LAYER = "stack.blocks.*", "layers.*"
QKV = rename([f"{BLOCK}.mixer.project.{part}" for part in "qkv"], f"{LAYER}.attention.query_key_value")


def head(task: str, options: Config, given: Config) -> Head:
    """A text is classified by its last real token."""
    if task == "tag":
        return Head(task=task, dropout=token_dropout(given))
    return Head(task=task, pool="last", dropout=0.0, bias=task != "classify")


def _adjust(options: dict[str, Any], given: Config) -> dict[str, Any]:
    rope = read_rope(given, float(given.get("rotary_emb_base", 10000.0)))
    factor = rope.pop("partial_rotary_factor", None)
    share = float(given.get("partial_rotary_factor", given.get("rotary_pct", 0.25)) if factor is None else factor)
    return {
        **options,
        "rotary_base": float(rope["rope_theta"]),
        "rotary_scaling": read_scaling(rope, options["max_length"]),
        "rotary_dim": int(options["width"] // options["heads"] * share),
        "output_bias": options["query_bias"],
    }


def _restore(record: dict[str, Any], options: Any) -> dict[str, Any]:
    into, out = (options.bias if bias is None else bias for bias in (options.query_bias, options.output_bias))
    if into != out:
        raise Unsupported(
            f"gpt_neox's attention has all its biases or none, and this model has {into} before, {out} after"
        )
    size = options.head_dim or options.width // options.heads
    share = (size if options.rotary_dim is None else options.rotary_dim) / size
    rope = {**write_rope(options.rotary_base, options.rotary_scaling), "partial_rotary_factor": share}
    old = {"rotary_pct": share, "rotary_emb_base": options.rotary_base, "partial_rotary_factor": share}
    return {**record, **both_spellings(rope), **old, "attention_bias": into}


GPT_NEOX = Family(
    name="gpt_neox",
    model="decoder",
    base="gpt_neox.",
    fields=(
        Field("vocabulary", "vocab_size", 50432),
        Field("width", "hidden_size", 6144),
        Field("layers", "num_hidden_layers", 44),
        Field("heads", "num_attention_heads", 64),
        Field("hidden", "intermediate_size", 24576),
        Field("activation", "hidden_act", "gelu", ACTIVATIONS),
        Field("max_length", "max_position_embeddings", 2048),
        Field("parallel", "use_parallel_residual", True),
        Field("eps", "layer_norm_eps", 1e-5),
        Field("query_bias", "attention_bias", True),
        Field("dropout", "hidden_dropout", 0.0),
        Field("attention_dropout", "attention_dropout", 0.0),
        Field("init_std", "initializer_range", 0.02),
        Field("tied", "tie_word_embeddings", False),
    ),
    fixed={
        "norm_position": "pre",
        "norm": "layer",
        "position": "rotary",
        "scale": False,
        "init": "normal",
    },
    architectures={
        "GPTNeoXForCausalLM": (),
        "GPTNeoXModel": (),
        "GPTNeoXForSequenceClassification": ("classify",),
        "GPTNeoXForTokenClassification": ("tag",),
        "GPTNeoXForQuestionAnswering": ("span",),
    },
    alone="GPTNeoXModel",
    head=head,
    body=(
        rename("embedding.weight", "embed_in.weight"),
        replace(QKV, by_head=True),
        rename(f"{BLOCK}.mixer.out", f"{LAYER}.attention.dense"),
        rename(f"{BLOCK}.around_mixer.norm", f"{LAYER}.input_layernorm"),
        rename(f"{BLOCK}.feedforward.inner", f"{LAYER}.mlp.dense_h_to_4h"),
        rename(f"{BLOCK}.feedforward.outer", f"{LAYER}.mlp.dense_4h_to_h"),
        rename(f"{BLOCK}.around_feedforward.norm", f"{LAYER}.post_attention_layernorm"),
        rename("stack.norm", "final_layer_norm"),
    ),
    output=(rename("head.weight", "embed_out.weight"),),
    speakers=("GPTNeoXForCausalLM",),
    heads={
        "classify": (rename("heads.classify.out", "score"),),
        "tag": (rename("heads.tag.out", "classifier"),),
        "span": (rename("heads.span.out", "qa_outputs"),),
    },
    ties={"embed_out.weight": "embed_in.weight"},
    untied=("embed_out.weight",),
    tied=False,
    ignored=(r".*attention\.(masked_)?bias", r".*rotary_emb\.inv_freq"),
    adjust=_adjust,
    restore=_restore,
)
