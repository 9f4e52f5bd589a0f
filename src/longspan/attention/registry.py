"""The table of attention mechanisms by name. A new built-in one needs its file and a line here."""

from dataclasses import asdict
from importlib import import_module
from typing import Any

from longspan import config
from longspan.attention.base import Attention, Shape
from longspan.registry import Registry

ATTENTION: Registry[Attention] = Registry(
    "attention",
    "longspan.attention",
    "longspan.attention.base:Attention",
    {
        # Dense
        "softmax": "longspan.attention.mechanisms.softmax:SoftmaxAttention",
        # Fixed patterns
        "window": "longspan.attention.mechanisms.window:WindowAttention",
        "longformer": "longspan.attention.mechanisms.longformer:LongformerAttention",
        "etc": "longspan.attention.mechanisms.etc:EtcAttention",
        "bigbird": "longspan.attention.mechanisms.bigbird:BigBirdAttention",
        "sparse": "longspan.attention.mechanisms.sparse:SparseAttention",
        "image_local": "longspan.attention.mechanisms.image_local:ImageLocalAttention",
        "axial": "longspan.attention.mechanisms.axial:AxialAttention",
        "memory_compressed": "longspan.attention.mechanisms.memory_compressed:MemoryCompressedAttention",
        # Memory
        "inducing": "longspan.attention.mechanisms.inducing:InducingAttention",
        # Learned patterns
        "reformer": "longspan.attention.mechanisms.reformer:ReformerAttention",
        "routing": "longspan.attention.mechanisms.routing:RoutingAttention",
        "sinkhorn": "longspan.attention.mechanisms.sinkhorn:SinkhornAttention",
        # Low rank
        "synthesizer": "longspan.attention.mechanisms.synthesizer:SynthesizerAttention",
        "linformer": "longspan.attention.mechanisms.linformer:LinformerAttention",
        "nystrom": "longspan.attention.mechanisms.nystrom:NystromAttention",
        # Kernels
        "linear": "longspan.attention.mechanisms.linear:LinearAttention",
        "performer": "longspan.attention.mechanisms.performer:PerformerAttention",
        "cosformer": "longspan.attention.mechanisms.cosformer:CosformerAttention",
        "retention": "longspan.attention.mechanisms.retention:RetentionAttention",
        "gated_linear": "longspan.attention.mechanisms.gated_linear:GatedLinearAttention",
        "hedgehog": "longspan.attention.mechanisms.hedgehog:HedgehogAttention",
        "window_linear": "longspan.attention.mechanisms.window_linear:WindowLinearAttention",
    },
)
names, find = ATTENTION.names, ATTENTION.find

# The classes of Tay et al., "Efficient Transformers: A Survey" (2020). A mechanism is listed under its first.
SURVEY_CLASSES: dict[str, str] = {
    "": "dense",
    "FP": "fixed pattern",
    "M": "memory",
    "LP": "learned pattern",
    "LR": "low rank",
    "KR": "kernel",
    "RC": "recurrence",
}


def survey_class(name: str) -> str:
    """The class of the survey that a mechanism is listed under."""
    classes = find(name).survey_class
    return SURVEY_CLASSES[classes[0] if classes else ""]


def by_survey_class() -> dict[str, list[str]]:
    """The names of all mechanisms, plugins included, by the survey's class."""
    members: dict[str, list[str]] = {}
    for name in names():
        members.setdefault(survey_class(name), []).append(name)
    return members


def build(
    name: str,
    *,
    heads: int,
    head_dim: int,
    value_dim: int | None = None,
    key_heads: int | None = None,
    causal: bool = False,
    max_length: int | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> Attention:
    """A mechanism by its name, with its options by theirs (see `longspan show NAME`).

    `head_dim` is the width of queries and keys, and of values unless `value_dim` is given. `key_heads` below `heads`
    are the heads of keys and values that groups of query heads share.
    A default that exceeds `max_length` shrinks to it; an option given by the caller is refused instead.

    >>> attention = build("window", heads=8, head_dim=64, causal=True, window=256)
    """
    mechanism = find(name)
    options = config.current_names(mechanism.Options, options, name)
    value_dim = head_dim if value_dim is None else value_dim
    key_heads = heads if key_heads is None else key_heads
    shape = Shape(heads=heads, head_dim=head_dim, value_dim=value_dim, max_length=max_length, key_heads=key_heads)
    fitted = mechanism.fit(config.make(mechanism.Options, options, name), options, shape)
    return mechanism(shape, fitted, causal=causal, dropout=dropout)


def summary(mechanism: type[Attention]) -> str:
    """The first line of the module's docstring, or of the class's if the module has none."""
    text = (import_module(mechanism.__module__).__doc__ or mechanism.__doc__ or "").strip()
    return text.splitlines()[0] if text else ""


def describe(name: str) -> dict[str, Any]:
    """What `longspan show` prints: paper, survey class, order, abilities, streams and options, ready for JSON."""
    mechanism = find(name)
    return {
        "name": name,
        "summary": summary(mechanism),
        "paper": mechanism.paper,
        "survey_class": list(mechanism.survey_class),
        "order": mechanism.order,
        "exponent": mechanism.exponent,
        "supports": asdict(mechanism.supports),
        "streams": [asdict(stream) for stream in mechanism.streams],
        "options": config.describe(mechanism.Options),
    }
