"""Colours of the charts: one for each kind of mechanism."""

from longspan.arena.models.registry import ARENA_MODELS

# Name: title, colour on white, colour on black. Chosen for colour-blind readers too: no red and green of the same
# lightness, and every mark has a name beside it.
KINDS = {
    "dense": ("dense", "#3d434d", "#d5d9e0"),
    "fixed-pattern": ("fixed pattern", "#0a66b7", "#64b0f4"),
    "learned-pattern": ("learned pattern", "#c4500a", "#ff9a5a"),
    "low-rank": ("low rank", "#00785a", "#45cfa5"),
    "kernel": ("kernel", "#8a2fb0", "#d490f0"),
    "memory": ("memory", "#b0245f", "#ff86b4"),
    "recurrent": ("recurrent", "#8a6500", "#e3bd4a"),
    "other": ("other", "#6b7280", "#9aa1ad"),
}


def kind(model: str) -> str:
    """The kind of an arena model's mechanism; "other" if this version does not know the model."""
    name = ARENA_MODELS[model].kind.replace(" ", "-") if model in ARENA_MODELS else "other"
    return name if name in KINDS else "other"


def title(model: str) -> str:
    """A model's name in print; a model that this version does not know keeps its name."""
    return ARENA_MODELS[model].title if model in ARENA_MODELS else model


def style() -> str:
    """Sets the variable `--k` to the colour of each kind, in light and dark mode."""
    light = " ".join(f".k-{name} {{ --k: {colour}; }}" for name, (_, colour, _) in KINDS.items())
    dark = " ".join(f".k-{name} {{ --k: {colour}; }}" for name, (_, _, colour) in KINDS.items())
    return f"{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}\n"
