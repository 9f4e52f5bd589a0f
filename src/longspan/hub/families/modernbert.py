"""ModernBERT (Warner et al. 2024): a pre-norm encoder with rotary positions, and windows in two layers of three."""

from typing import Any

from longspan.attention.config import AttentionConfig
from longspan.errors import InvalidInput, Unsupported
from longspan.hub.families.base import ACTIVATIONS, Config, Family, Field
from longspan.hub.families.llama_like import GATES
from longspan.hub.tensor_names import Rule, rename
from longspan.models.attention_positions import RotaryLayer
from longspan.models.body import spread
from longspan.nn.heads import Head

FULL, LOCAL = "full_attention", "sliding_attention"
BASES = {FULL: 160_000.0, LOCAL: 10_000.0}
OLD_KEYS = {FULL: "global_rope_theta", LOCAL: "local_rope_theta"}
POOLS = {"cls": "first", "mean": "mean"}


def head(task: str, options: Config, given: Config) -> Head:
    """One hidden layer with a norm, the same for all tasks; texts are pooled by their first token or by the mean."""
    name = given.get("classifier_activation", "gelu")
    if name not in ACTIVATIONS:
        raise Unsupported(f"config.json: classifier_activation is {name!r}; it can be {', '.join(ACTIVATIONS)}")
    activation, dense_bias = ACTIVATIONS[name], bool(given.get("classifier_bias", False))
    if task == "masked":
        tied, bias = bool(given.get("tie_word_embeddings", True)), bool(given.get("decoder_bias", True))
        return Head(task=task, activation=activation, dense_bias=dense_bias, tied=tied, bias=bias)
    pooling = given.get("classifier_pooling", "cls")
    if pooling not in POOLS:
        raise Unsupported(f"config.json: classifier_pooling is {pooling!r}; it can be {' or '.join(POOLS)}")
    return Head(
        task=task,
        activation=activation,
        dense_bias=dense_bias,
        dense_norm=True,
        dropout=float(given.get("classifier_dropout") or 0.0),
        pool=POOLS[pooling] if task in ("classify", "choose") else "first",
    )


def _kinds(given: Config, layers: int) -> list[str]:
    """The kind of each layer; old configurations give the distance between full ones."""
    kinds = given.get("layer_types")
    if kinds is None:
        every = int(given.get("global_attn_every_n_layers") or 3)
        return [LOCAL if layer % every else FULL for layer in range(layers)]
    if len(kinds) != layers:
        raise InvalidInput(f"config.json: layer_types has {len(kinds)} entries for {layers} layers")
    for kind in kinds:
        if kind not in BASES:
            raise Unsupported(f"config.json: layer_types has {kind!r}; a layer can be {' or '.join(BASES)}")
    return list(kinds)


def _bases(given: Config) -> dict[str, float]:
    """The base of the wavelengths of each kind of layer."""
    bases = {}
    for kind, default in BASES.items():
        rope = dict((given.get("rope_parameters") or {}).get(kind) or {})
        rope.update(given.get("rope_scaling") or {})
        scaled = rope.get("rope_type", rope.get("type", "default"))
        if scaled != "default":
            raise Unsupported(f"config.json: rope_type of {kind} is {scaled!r}; for modernbert it can be 'default'")
        old = given.get(OLD_KEYS[kind])
        bases[kind] = float(rope.get("rope_theta") or old or default)
    if "rope_parameters" not in given and given.get(OLD_KEYS[LOCAL], 0) is None:
        bases[LOCAL] = bases[FULL]  # null meant: as in full layers
    return bases


def _adjust(options: dict[str, Any], given: Config) -> dict[str, Any]:
    kinds, bases = _kinds(given, options["layers"]), _bases(given)
    window = AttentionConfig("window", window=int(given.get("local_attention", 128)) // 2)
    settings = [AttentionConfig("softmax") if kind == FULL else window for kind in kinds]
    return {
        **options,
        "attention": tuple(settings),
        "rotary_base": bases[FULL],
        "rotary_layers": tuple(RotaryLayer(base=bases[kind]) for kind in kinds),
        "output_bias": options["query_bias"],
    }


def _restore(record: dict[str, Any], options: Any) -> dict[str, Any]:
    settings = spread(options.attention, options.layers, "modernbert")
    windows = {int(setting.options.get("window", 128)) for setting in settings if setting.name == "window"}
    if len(windows) > 1 or any(setting.name not in ("softmax", "window") for setting in settings):
        raise Unsupported("modernbert has layers with full attention and layers with one window")
    kinds = [FULL if setting.name == "softmax" else LOCAL for setting in settings]
    given = options.rotary_layers or (RotaryLayer(),)
    bases = {FULL: options.rotary_base, LOCAL: options.rotary_base}
    for layer, kind in enumerate(kinds):
        bases[kind] = given[layer % len(given)].base or options.rotary_base
    local = {"local_attention": 2 * max(windows)} if windows else {}
    pools = {ours: theirs for theirs, ours in POOLS.items()}
    for item in options.tasks or ():
        if item.task != "masked":
            record["classifier_dropout"] = item.dropout
        if item.task in ("classify", "regress", "choose") and item.pool in pools:
            record["classifier_pooling"] = pools[item.pool]
    return {
        **record,
        **local,
        "attention_bias": options.bias if options.query_bias is None else options.query_bias,
        "layer_types": kinds,
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
        # The old names as well: other readers than transformers 5 look for them.
        **{OLD_KEYS[kind]: base for kind, base in bases.items()},
    }


def _head_rules(task: str) -> tuple[Rule, ...]:
    return (
        Rule((f"heads.{task}.dense",), ("head.dense",), common=True),
        Rule((f"heads.{task}.dense_norm",), ("head.norm",), common=True),
        rename(f"heads.{task}.out", "classifier"),
    )


MODERNBERT = Family(
    name="modernbert",
    model="encoder",
    base="model.",
    fields=(
        Field("vocabulary", "vocab_size", 50368),
        Field("width", "hidden_size", 768),
        Field("layers", "num_hidden_layers", 22),
        Field("heads", "num_attention_heads", 12),
        Field("hidden", "intermediate_size", 1152),
        Field("activation", "hidden_activation", "gelu", GATES),
        Field("max_length", "max_position_embeddings", 8192),
        Field("norm", "norm_bias", False, {False: "layer_no_bias", True: "layer"}),
        Field("eps", "norm_eps", 1e-5),
        Field("bias", "mlp_bias", False),
        Field("query_bias", "attention_bias", False),
        Field("attention_dropout", "attention_dropout", 0.0),
        Field("embedding_dropout", "embedding_dropout", 0.0),
        Field("hidden_dropout", "mlp_dropout", 0.0),
        Field("init_std", "initializer_range", 0.02),
        Field("padding", "pad_token_id", 50283),
    ),
    fixed={
        "norm_position": "pre",
        "first_norm": False,
        "position": "rotary",
        "embedding_norm": True,
        "scale": False,
        "dropout": 0.0,
        "init": "normal",
    },
    architectures={
        "ModernBertModel": (),
        "ModernBertForMaskedLM": ("masked",),
        "ModernBertForSequenceClassification": ("classify",),
        "ModernBertForMultipleChoice": ("choose",),
        "ModernBertForTokenClassification": ("tag",),
        "ModernBertForQuestionAnswering": ("span",),
    },
    head=head,
    body=(
        rename("embedding.weight", "embeddings.tok_embeddings.weight"),
        rename("embedding.norm", "embeddings.norm"),
        rename([f"stack.blocks.*.mixer.project.{part}" for part in "qkv"], "layers.*.attn.Wqkv"),
        rename("stack.blocks.*.mixer.out", "layers.*.attn.Wo"),
        rename("stack.blocks.*.around_mixer.norm", "layers.*.attn_norm"),
        rename("stack.blocks.*.feedforward.inner", "layers.*.mlp.Wi"),
        rename("stack.blocks.*.feedforward.outer", "layers.*.mlp.Wo"),
        rename("stack.blocks.*.around_feedforward.norm", "layers.*.mlp_norm"),
        rename("stack.norm", "final_norm"),
    ),
    heads={
        "masked": (
            Rule(("heads.masked.dense",), ("head.dense",), common=True),
            Rule(("heads.masked.norm",), ("head.norm",), common=True),
            rename("heads.masked.bias", "decoder.bias"),
            rename("heads.masked.weight", "decoder.weight"),
        ),
        **{task: _head_rules(task) for task in ("classify", "choose", "tag", "span")},
    },
    ties={"decoder.weight": "embeddings.tok_embeddings.weight"},
    untied=("decoder.weight",),
    ignored=(r".*rotary_emb.*inv_freq",),
    adjust=_adjust,
    restore=_restore,
)
