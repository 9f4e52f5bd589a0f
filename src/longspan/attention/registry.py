"""The table of mechanisms, by family. To add one: its file, and its line here."""

from dataclasses import asdict
from importlib import import_module
from typing import Any

from longspan import config
from longspan.attention.base import Attention, Shape
from longspan.errors import UnknownName, suggest

MECHANISMS: dict[str, str] = {
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
}

# The classes of Tay et al., "Efficient Transformers: A Survey" (2020). A mechanism may have several; the first counts.
FAMILIES: dict[str, str] = {
    "": "dense",
    "FP": "fixed pattern",
    "M": "memory",
    "LP": "learned pattern",
    "LR": "low rank",
    "KR": "kernel",
    "RC": "recurrence",
}


def names() -> list[str]:
    """The names of all mechanisms."""
    return list(MECHANISMS)


def family(name: str) -> str:
    """The family that a mechanism is listed under."""
    classes = find(name).family
    return FAMILIES[classes[0] if classes else ""]


def families() -> dict[str, list[str]]:
    """The names of each family's mechanisms."""
    members: dict[str, list[str]] = {}
    for name in MECHANISMS:
        members.setdefault(family(name), []).append(name)
    return members


def find(name: str) -> type[Attention]:
    """The class of a mechanism."""
    if name not in MECHANISMS:
        raise UnknownName(f"no attention is called {name!r}: {suggest(name, MECHANISMS)}")
    module, _, attribute = MECHANISMS[name].partition(":")
    found = getattr(import_module(module), attribute)
    assert issubclass(found, Attention)
    return found


def build(
    name: str,
    *,
    heads: int,
    head_dim: int,
    causal: bool = False,
    max_length: int | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> Attention:
    """A mechanism by its name, with its options by theirs (see `longspan show NAME`).

    An option that is not given shrinks to what `max_length` has room for; one that is given is refused instead.

    >>> attention = build("window", heads=8, head_dim=64, causal=True, window=256)
    """
    found = find(name)
    shape = Shape(heads=heads, head_dim=head_dim, max_length=max_length)
    fitted = found.fit(config.make(found.Options, options, name), options, shape)
    return found(shape, fitted, causal=causal, dropout=dropout)


def describe(name: str) -> dict[str, Any]:
    """What `longspan show` prints: paper, family, order, abilities, streams and options, ready for JSON."""
    found = find(name)
    return {
        "name": name,
        "summary": (import_module(found.__module__).__doc__ or "").strip().splitlines()[0],
        "paper": found.paper,
        "family": list(found.family),
        "order": found.order,
        "exponent": found.exponent,
        "supports": asdict(found.supports),
        "streams": [asdict(stream) for stream in found.streams],
        "options": config.describe(found.Options),
    }
