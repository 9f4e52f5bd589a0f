"""Reformer (Kitaev et al. 2020): reversible layers of LSH and local attention; the output has twice the width.

LSH layers work as released, which is not strictly causal and cannot decode. With our own key in config.json,
`"lsh_form": "strict"`, they are strictly causal and can, with the same weights.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from longspan import config
from longspan.attention.config import AttentionConfig
from longspan.errors import Unsupported
from longspan.hub.families.base import ACTIVATIONS, Config, Family, Field
from longspan.hub.families.bert import classifier_dropout
from longspan.hub.tensor_names import rename
from longspan.models.body import spread
from longspan.nn.heads import Head

FIELDS = (
    Field("vocabulary", "vocab_size", 320),
    Field("width", "hidden_size", 256),
    Field("heads", "num_attention_heads", 12),
    Field("head_dim", "attention_head_size", 64),
    Field("hidden", "feed_forward_size", 512),
    Field("activation", "hidden_act", "relu", ACTIVATIONS),
    Field("dropout", "hidden_dropout_prob", 0.05),
    Field("hidden_dropout", "hidden_dropout_prob", 0.05),
    Field("max_length", "max_position_embeddings", 4096),
    Field("init_std", "initializer_range", 0.02),
    Field("eps", "layer_norm_eps", 1e-12),
    Field("feedforward_chunk", "chunk_size_feed_forward", 0),
)
FIXED: Config = {
    "norm_position": "pre",
    "reversible": True,
    "query_bias": False,
    "output_bias": False,
    "scale": False,
    "init": "normal",
}
LAYERS = ("local", "lsh", "local", "lsh", "local", "lsh")
KEY_EPS = 1e-6  # added to the mean square of a key

# Attention of the two kinds of layers


def _local(given: Config, causal: bool) -> AttentionConfig:
    chunk = int(given.get("local_attn_chunk_length", 64))
    before, after = (
        int(given.get(f"local_num_chunks_{side}", number)) for side, number in (("before", 1), ("after", 0))
    )
    around = {} if causal else {"memory_after": after * chunk, "ring": True}
    if causal and after:
        raise Unsupported(f"config.json: local_num_chunks_after is {after}; a decoder reads nothing behind")
    dropout = float(given.get("local_attention_probs_dropout_prob", 0.05))
    return AttentionConfig("image_local", dropout=dropout, query_block=chunk, memory=before * chunk, **around)


def _hashed(given: Config, causal: bool) -> AttentionConfig:
    form = given.get("lsh_form", "released")
    if form not in ("released", "strict") or (form == "strict" and not causal):
        raise Unsupported(f"config.json: lsh_form is {form!r}; it can be 'released' or, in a decoder, 'strict'")
    options: dict[str, Any] = {
        "rounds": int(given.get("num_hashes", 1)),
        "chunk": int(given.get("lsh_attn_chunk_length", 64)),
        "buckets": _buckets(given),
        "form": None if form == "strict" else form,  # the default in a decoder
        "chunks_before": int(given.get("lsh_num_chunks_before", 1)),
        "chunks_after": int(given.get("lsh_num_chunks_after", 0)),
        "eps": KEY_EPS,
        "seed": given.get("hash_seed"),
    }
    if causal and options["chunks_after"]:
        after = options["chunks_after"]
        raise Unsupported(f"config.json: lsh_num_chunks_after is {after}; a decoder reads nothing behind")
    return AttentionConfig("reformer", dropout=float(given.get("lsh_attention_probs_dropout_prob", 0.0)), **options)


def _buckets(given: Config) -> int | tuple[int, ...]:
    """The number of buckets; by default that for the longest text (in Hugging Face, the first text decides)."""
    buckets = given.get("num_buckets")
    if buckets is not None:
        return int(buckets) if isinstance(buckets, int) else tuple(int(factor) for factor in buckets)
    longest, chunk = int(given.get("max_position_embeddings", 4096)), int(given.get("lsh_attn_chunk_length", 64))
    power = max(1, (2 * (longest // chunk)).bit_length() - 1)
    if 2**power > 2 * max(int((longest // chunk) ** 0.5), chunk):
        return 2 ** (power // 2), 2 ** (power - power // 2)
    return int(2**power)


def _adjust(causal: bool) -> Any:
    def adjust(options: dict[str, Any], given: Config) -> dict[str, Any]:
        kinds: Sequence[str] = given.get("attn_layers", LAYERS)
        if not kinds or not {"local", "lsh"}.issuperset(kinds):
            raise Unsupported(f"config.json: attn_layers are of 'local' and 'lsh', not {kinds!r}")
        builders = {"local": _local, "lsh": _hashed}
        settings = {kind: builders[kind](given, causal) for kind in dict.fromkeys(kinds)}
        options |= {"layers": len(kinds), "attention": tuple(settings[kind] for kind in kinds)}
        if not given.get("axial_pos_embds", True):
            return {**options, "position": "learned"}
        axes = tuple(given.get("axial_pos_shape", (64, 64)))
        if len(axes) != 2:
            raise Unsupported(f"config.json: axial_pos_shape is {axes}; it must have two sides")
        widths = tuple(given.get("axial_pos_embds_dim", (64, 192)))
        return {**options, "position": "axial", "axes": axes, "axis_widths": widths}

    return adjust


# Our options to their configuration


def _restore(causal: bool) -> Any:
    def restore(record: dict[str, Any], options: Any) -> dict[str, Any]:
        """Adds the keys for the layers and the positions."""
        record["is_decoder"] = causal
        layers = spread(options.attention, options.layers, "reformer")
        settings = [_complete(layer, options, causal) for layer in layers]
        for setting in settings:
            record |= _keys(setting, causal)
        record["attn_layers"] = ["local" if setting.name == "image_local" else "lsh" for setting in settings]
        record["axial_pos_embds"] = options.position == "axial"
        if options.position == "axial":
            record |= {"axial_pos_shape": list(options.axes), "axial_pos_embds_dim": list(options.axis_widths)}
        elif options.position != "learned":
            raise Unsupported(f"reformer has axial positions or learned ones, not {options.position}")
        read_back = _adjust(causal)({}, record)["attention"]
        for setting, nearest in zip(settings, read_back):
            if setting != nearest:
                raise Unsupported(f"reformer cannot say {setting!r} of a layer; the nearest is {nearest!r}")
        for head in options.tasks or ():
            if head.task in ("classify", "regress"):
                record["classifier_dropout"] = head.dropout
        return record

    return restore


def _complete(setting: AttentionConfig, options: Any, causal: bool) -> AttentionConfig:
    """The setting of a layer with explicit dropout, and without its form if that is the default."""
    dropout = options.attention_dropout if setting.dropout is None else setting.dropout
    default_form = "strict" if causal else "paper"
    options_kept = {name: value for name, value in setting.options.items() if (name, value) != ("form", default_form)}
    return AttentionConfig(setting.name, dropout=dropout, **options_kept)


def _keys(setting: AttentionConfig, causal: bool) -> dict[str, Any]:
    """The keys for a layer; `restore` reads them back to find what they cannot express."""
    values = setting.all_options
    if setting.name == "image_local" and isinstance(values.query_block, int):
        return {
            "local_attn_chunk_length": values.query_block,
            "local_num_chunks_before": values.memory // values.query_block,
            "local_num_chunks_after": (values.memory_after or 0) // values.query_block,
            "local_attention_probs_dropout_prob": setting.dropout,
        }
    if setting.name == "reformer":
        return {
            "num_hashes": values.rounds,
            "lsh_attn_chunk_length": values.chunk,
            "num_buckets": config.plain(values.buckets),
            "lsh_num_chunks_before": values.chunks_before,
            "lsh_num_chunks_after": values.chunks_after,
            "hash_seed": values.seed,
            "lsh_attention_probs_dropout_prob": setting.dropout,
            "lsh_form": values.form or ("strict" if causal else "paper"),
        }
    raise Unsupported(f"reformer's layers are 'image_local' or 'reformer', and this model has {setting!r}")


# Names


def _along(axis: int) -> Any:
    """The shape of a position table: both sides of the grid, one of them of a single row."""

    def shape(options: Any, ours: Tensor) -> tuple[int, ...]:
        rows, width = ours.shape
        return (rows, 1, width) if axis == 0 else (1, rows, width)

    return shape


_ATTENTION, _MIX = "encoder.layers.*.attention", "stack.stack.blocks.*.0"
_FEEDFORWARD, _CHANGE = "encoder.layers.*.feed_forward", "stack.stack.blocks.*.1"
BODY = (
    rename("embedding.weight", "embeddings.word_embeddings.weight"),
    rename("embedding.position.weight", "embeddings.position_embeddings.embedding.weight"),
    rename("embedding.position.tables.0", "embeddings.position_embeddings.weights.0", shape=_along(0)),
    rename("embedding.position.tables.1", "embeddings.position_embeddings.weights.1", shape=_along(1)),
    # A layer with separate keys is local; in others, queries and keys share weights.
    rename(
        [f"{_MIX}.mixer.project.{part}" for part in "qkv"],
        [f"{_ATTENTION}.self_attention.{part}" for part in ("query", "key", "value")],
    ),
    rename(
        [f"{_MIX}.mixer.project.{part}" for part in "qv"],
        [f"{_ATTENTION}.self_attention.{part}" for part in ("query_key", "value")],
    ),
    rename(f"{_MIX}.mixer.out", f"{_ATTENTION}.output.dense"),
    rename(f"{_MIX}.norm", f"{_ATTENTION}.layer_norm"),
    rename(f"{_CHANGE}.feedforward.inner", f"{_FEEDFORWARD}.dense.dense"),
    rename(f"{_CHANGE}.feedforward.outer", f"{_FEEDFORWARD}.output.dense"),
    rename(f"{_CHANGE}.norm", f"{_FEEDFORWARD}.layer_norm"),
    rename("stack.norm", "encoder.layer_norm"),
)


def head(task: str, options: Config, given: Config) -> Head:
    """Heads read both streams; a text is classified by its first token."""
    if task == "masked":
        return Head(task=task, tied=False)
    if task == "span":
        return Head(task=task, dropout=0.0)
    dropout = classifier_dropout(options, given)
    return Head(task=task, activation="tanh", inner=options["width"], dropout=dropout, drop_input=True)


_ENCODER = Family(
    name="reformer",
    model="encoder",
    base="reformer.",
    fields=FIELDS,
    fixed=FIXED,
    only={"tie_word_embeddings": (False,)},
    architectures={
        "ReformerModel": (),
        "ReformerForMaskedLM": ("masked",),
        "ReformerForSequenceClassification": ("classify",),
        "ReformerForQuestionAnswering": ("span",),
    },
    head=head,
    body=BODY,
    heads={
        "masked": (
            rename("heads.masked.weight", "lm_head.decoder.weight"),
            rename("heads.masked.bias", "lm_head.bias"),
        ),
        "classify": (
            rename("heads.classify.dense", "classifier.dense"),
            rename("heads.classify.out", "classifier.out_proj"),
        ),
        "span": (rename("heads.span.out", "qa_outputs"),),
    },
    ties={"lm_head.decoder.bias": "lm_head.bias"},
    tied=False,
    ignored=(r".*self_attention\.(self_)?mask_value_float(16|32)",),
    adjust=_adjust(causal=False),
    restore=_restore(causal=False),
)
_DECODER = replace(
    _ENCODER,
    model="decoder",
    fixed={**FIXED, "tied": False, "head_bias": True},
    architectures={
        "ReformerModelWithLMHead": (),
        "ReformerModel": (),
        "ReformerForSequenceClassification": ("classify",),
        "ReformerForQuestionAnswering": ("span",),
    },
    alone="ReformerModel",
    heads={task: _ENCODER.heads[task] for task in ("classify", "span")},
    output=(rename("head.weight", "lm_head.decoder.weight"), rename("head.bias", "lm_head.bias")),
    speakers=("ReformerModelWithLMHead",),
    adjust=_adjust(causal=True),
    restore=_restore(causal=True),
)
REFORMER = replace(_ENCODER, decoder=_DECODER)
