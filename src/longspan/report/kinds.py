"""What sort of mechanism a model of the arena has: its colour, on pages and in figures."""

from functools import cache

from longspan.attention import registry

# Of the survey's classes; a mechanism of several is shown as the first that it names.
FAMILIES = {"FP": "fixed", "LP": "learned", "LR": "low-rank", "KR": "kernel", "M": "memory", "RC": "recurrent"}
DENSE, RECURRENT = ("dense", "naive"), ("lstm", "gru")

# Name: title, colour on white, colour on black. Told apart by people who see few colours, too: no red beside a green
# of one lightness; and a name stands at every mark.
KINDS = {
    "dense": ("dense", "#3d434d", "#d5d9e0"),
    "fixed": ("fixed pattern", "#0a66b7", "#64b0f4"),
    "learned": ("learned pattern", "#c4500a", "#ff9a5a"),
    "low-rank": ("low rank", "#00785a", "#45cfa5"),
    "kernel": ("kernel", "#8a2fb0", "#d490f0"),
    "memory": ("memory", "#b0245f", "#ff86b4"),
    "recurrent": ("recurrent", "#8a6500", "#e3bd4a"),
    "other": ("other", "#6b7280", "#9aa1ad"),
}

# Where the survey's first class is not what one would look for.
OTHERWISE = {"synthesizer": "learned", "memory_compressed": "memory"}

TITLES = {  # as papers print them; a name that is not here is printed as it is
    "dense": "Transformer",
    "naive": "Transformer, not fused",
    "window": "Local Attention",
    "etc": "ETC",
    "bigbird": "BigBird",
    "sparse": "Sparse Transformer",
    "image_local": "Image Transformer",
    "axial": "Axial Transformer",
    "memory_compressed": "Memory Compressed",
    "inducing": "Set Transformer",
    "routing": "Routing Transformer",
    "sinkhorn": "Sinkhorn Transformer",
    "nystrom": "Nyströmformer",
    "linear": "Linear Transformer",
    "cosformer": "cosFormer",
    "gated_linear": "Gated Linear",
    "lstm": "Bidirectional LSTM",
    "gru": "Bidirectional GRU",
}


@cache
def kind(model: str) -> str:
    """Of a model by its name: a registered mechanism, or one of the few that are none."""
    if model in DENSE:
        return "dense"
    if model in RECURRENT:
        return "recurrent"
    if model in OTHERWISE:
        return OTHERWISE[model]
    if model in registry.MECHANISMS:
        family = registry.find(model).family
        return FAMILIES[family[0]] if family else "dense"
    return "other"


def title(model: str) -> str:
    """As it is printed."""
    if model in TITLES:
        return TITLES[model]
    return model.replace("_", " ")[:1].upper() + model.replace("_", " ")[1:]


def style() -> str:
    """A colour `--k` for each kind, on white and on black."""

    def of(place: int) -> str:
        return " ".join(f".k-{name} {{ --k: {each[place]}; }}" for name, each in KINDS.items())

    return f"{of(1)}\n@media (prefers-color-scheme: dark) {{ {of(2)} }}\n"
